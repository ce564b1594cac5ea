"""What is said to this process: by signals, and, where no agent watches its node, by the node's sources."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

from elastic.preemption.notice import Kind, Notice
from elastic.preemption.signals import SignalNotices
from elastic.preemption.sources.source import Source
from elastic.preemption.watcher import Watcher


class ProcessNotices:
    """Hears notices between `install` and `close`. They come in threads; what they say can be read in any.

    leave  the notice to leave that gives the least time, once there is one; it stays, also if it is withdrawn
    """

    def __init__(self, signals: SignalNotices, sources: Sequence[Source] = (), *, say: Callable[[str], None]) -> None:
        self.leave: Notice | None = None
        self._signals = signals
        self._say = say
        self._watcher = Watcher(sources, tell=self._on_notice, say=say)
        self._tell: Callable[[Notice], None] | None = None
        self._hints: list[Notice] = []
        self._lock = threading.Lock()

    def install(self, tell: Callable[[Notice], None] | None = None) -> None:
        """Begin to hear notices. tell: called with each notice to leave, in the thread that it comes in."""
        self._tell = tell
        if not self._signals.install(self._on_notice) and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._say(
                "notices begin in a thread that is not the main one, where Python takes no signals: SIGTERM ends this "
                "process at once; enter the with-block in the main thread"
            )
        self._watcher.start()

    def close(self, *, gone: bool = False) -> None:
        """End the hearing, see Watcher.close."""
        self._signals.close()
        self._watcher.close(gone=gone)

    def take_hint(self) -> Notice | None:
        """Remove and return the first hint that came since; None: none has."""
        with self._lock:
            return self._hints.pop(0) if self._hints else None

    def _on_notice(self, notice: Notice) -> None:
        """Keep a hint until it is taken; tell of a notice to leave, and keep the one that gives the least time."""
        if notice.withdrawn:
            return  # who has begun to leave cannot know who has seen that; and a save harms nobody
        with self._lock:
            if notice.kind is Kind.HINT:
                self._hints += [] if notice.sooner else [notice]
                return
            before = self.leave
            if before is None or (notice.by_s is not None and (before.by_s is None or notice.by_s < before.by_s)):
                self.leave = notice
        if self._tell is not None:
            self._tell(notice)

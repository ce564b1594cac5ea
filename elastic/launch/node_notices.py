"""The watcher of a node in its agent: what its threads say is heard in the agent's loop, one after the other.

A hook is told of each notice, to order another machine, say. It is a child of the agent like others: what the agent
reaps and ends in the end.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from elastic.preemption.notice import Notice
from elastic.preemption.sources.source import Source
from elastic.preemption.watcher import Watcher


class NodeNotices:
    """From `open` to `close`.

    hook     a line for the shell, run once for each notice and hint; None: nobody is told
    environ  the hook's, beside what it is told
    """

    def __init__(
        self, sources: Sequence[Source], hook: str | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._hook = hook
        self._environ = dict(environ or {})
        self._called: list[subprocess.Popen[bytes]] = []
        self._said: deque[Notice | str] = deque()
        self._arrived = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher = Watcher(sources, tell=self._put, say=self._put)

    def open(self, loop: selectors.BaseSelector, tell: Callable[[Notice], None], say: Callable[[str], None]) -> None:
        """tell, say  called in the loop, see Watcher"""
        self._tell, self._say = tell, say
        loop.register(self._arrived, selectors.EVENT_READ, self._hear)
        self._watcher.start()

    def close(self, loop: selectors.BaseSelector, *, gone: bool) -> None:
        """gone: see Watcher.close"""
        self._watcher.close(gone=gone)
        if self._arrived in loop.get_map():
            loop.unregister(self._arrived)

    def _put(self, said: Notice | str) -> None:
        self._said.append(said)
        os.eventfd_write(self._arrived, 1)

    def _hear(self) -> None:
        os.eventfd_read(self._arrived)
        while self._said:
            said = self._said.popleft()
            if isinstance(said, str):
                self._say(said)
            else:
                self._tell(said)
                self._call_hook(said)

    def _call_hook(self, notice: Notice) -> None:
        if self._hook is None or notice.withdrawn:
            return
        left_s = notice.left_s(time.monotonic())
        told = {
            "ELASTIC_NOTICE_KIND": notice.kind.value,
            "ELASTIC_NOTICE_SOURCE": notice.source,
            "ELASTIC_NOTICE_WHY": notice.why,
            "ELASTIC_NOTICE_LEFT_S": "" if left_s is None else f"{left_s:.0f}",
            "ELASTIC_NOTICE_HOST": notice.node,
        }
        command, env = ["/bin/sh", "-c", self._hook], {**self._environ, **told}
        try:
            self._called.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=env))
        except OSError as failure:
            self._say(f"--on-notice cannot be run: {failure}; the node acts on the notice all the same")

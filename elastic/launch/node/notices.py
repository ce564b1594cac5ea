"""A node's notices: heard in the agent's loop, one after the other, and passed to the hook (notice_hook.py)."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable, Sequence

from elastic.launch.node.notice_hook import NoticeHook
from elastic.preemption.notice import Notice
from elastic.preemption.sources.source import Source
from elastic.preemption.watcher import Watcher


class NodeNotices:
    """The notices of a node, from `open` to `close`."""

    def __init__(self, sources: Sequence[Source], hook: NoticeHook) -> None:
        self._hook = hook
        self._said: deque[Notice | str] = deque()
        self._arrived = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher = Watcher(sources, tell=self._put, say=self._put)

    def open(self, loop: selectors.BaseSelector, tell: Callable[[Notice], None], say: Callable[[str], None]) -> None:
        """Begin to watch; `tell` and `say`, see Watcher, are called in the loop."""
        self._tell, self._say = tell, say
        loop.register(self._arrived, selectors.EVENT_READ, self._hear)
        self._watcher.start()

    def close(self, loop: selectors.BaseSelector, *, gone: bool) -> None:
        """Stop watching; gone: see Watcher.close."""
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
                self._hook.call(said)

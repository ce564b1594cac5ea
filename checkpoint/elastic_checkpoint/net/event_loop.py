"""An event loop: each registered object comes with the function that is called once it is ready.

What is said in a turn leaves at its end (connection.py): the loop never waits while something is to be sent. An agent
turns its own loop; servers and clients of a checkpoint have one in a thread (`LoopThread`); and who has to wait for an
answer turns one until it has come (`wait_for`).
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from elastic_checkpoint.forks import close_in_children, forget

_CLOSE_S = 60.0  # what is being sent may take so long
_LOOK_S = 0.5  # between two looks at whether the thread is there
_WAKE_BYTES = 4096


class EventLoop(selectors.DefaultSelector):
    """A selector that first calls what is to be done before it waits."""

    def __init__(self) -> None:
        super().__init__()
        self._at_end: deque[Callable[[], None]] = deque()

    def at_end_of_turn(self, act: Callable[[], None]) -> None:
        """Call this at the end of the turn, before the loop waits again."""
        self._at_end.append(act)

    def end_turn(self) -> None:
        """Do what is to be done at the end of the turn, also what that asks for."""
        while self._at_end:
            self._at_end.popleft()()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.end_turn()
        return super().select(timeout)


def run_once(loop: selectors.BaseSelector, timeout_s: float | None) -> bool:
    """Wait for what is ready, `timeout_s` at most, and call it; return whether anything was.

    What one of them closes or changes is not called in this turn any more. It lies in the same batch all the same, and
    its number may belong to another socket by then; what is ready still comes with the next turn.
    """
    ready = loop.select(timeout_s)
    for key, _ in ready:
        if loop.get_map().get(key.fd) is key:
            key.data()
    return bool(ready)


def wait_for(loop: EventLoop, done: Callable[[], object], deadline_s: float) -> None:
    """Turn the loop until `done`. Raises TimeoutError at `deadline_s`, on the clock time.monotonic()."""
    while not done():
        if (rest_s := deadline_s - time.monotonic()) <= 0:
            raise TimeoutError("it has not answered in time")
        run_once(loop, rest_s)


class LoopThread:
    """A loop that a thread turns from `start` on, until `close` or its process's end.

    What is registered in it belongs to it: it is closed with it, and in a forked child at once.
    """

    def __init__(self, name: str) -> None:
        """Make the loop, which may be turned by others until it starts; name: of its thread."""
        self.loop = EventLoop()
        self.ended = False  # or about to
        self._calls: deque[Callable[[], None]] = deque()
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        self.loop.register(self._woken, selectors.EVENT_READ, self._call)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        close_in_children(self)

    def start(
        self,
        tick: Callable[[float], None] = lambda now_s: None,
        next_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Turn the loop from here on; tick: is called in each turn, and at `next_s()`, if that is not None."""
        self._tick, self._next_s = tick, next_s
        self._thread.start()

    def call(self, act: Callable[[], None]) -> None:
        """Have the thread call this, soon."""
        self._calls.append(act)
        with suppress(OSError):  # so many wake it already, or it has ended
            self._waking.send(b"\0")

    def call_and_wait(self, act: Callable[[], None], within_s: float) -> None:
        """Have the thread call this, and go on when it has, or has ended, or after so long. Raises what this raises."""
        if self._is_own():
            act()
            return
        called, deadline_s = threading.Event(), time.monotonic() + within_s
        failed: list[Exception] = []

        def do() -> None:
            try:
                act()
            except Exception as error:  # the thread is not only this caller's
                failed.append(error)
            called.set()

        self.call(do)
        while self._thread.is_alive() and not called.wait(_LOOK_S) and time.monotonic() < deadline_s:
            pass
        if failed:
            raise failed[0]

    def close(self, last: Callable[[float], None] = lambda deadline_s: None) -> None:
        """End the thread, after it has called `last` with a deadline, and close what is in the loop. Idempotent."""
        if self.ended:
            return
        self._calls.append(lambda: last(time.monotonic() + _CLOSE_S))
        self.ended = True
        self.call(lambda: None)
        if not self._is_own():
            self._thread.join(_CLOSE_S)

    def close_in_child(self) -> None:
        self.ended = True
        self._close_all()

    def _is_own(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            while not self.ended:
                due_s = self._next_s()
                run_once(self.loop, None if due_s is None else max(0.0, due_s - time.monotonic()))
                self._tick(time.monotonic())
            self._call()
        finally:
            self._close_all()
            forget(self)

    def _call(self) -> None:
        with suppress(OSError):
            self._woken.recv(_WAKE_BYTES)
        while self._calls:
            self._calls.popleft()()

    def _close_all(self) -> None:
        for key in list((self.loop.get_map() or {}).values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._waking.close()
        self.loop.close()

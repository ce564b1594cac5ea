"""An agent's event loop: each registered object comes with the function that is called once it is ready.

What is said in a turn leaves at its end (loop_connection.py): the loop never waits while something is to be sent.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable


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

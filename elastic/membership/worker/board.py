"""What the workers of a view tell each other while they form its group, as the store that torch's groups take.

A key that one worker sets goes over its channel to the hub, and from there to all workers of the view (`put`, `board`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from torch.distributed import Store

_FORM_S = 60.0


class BoardChannel(Protocol):
    """The worker's channel to its agent, see Live."""

    def put(self, generation: int, key: str, value: bytes) -> None: ...
    def look(self, generation: int, keys: list[str]) -> bool: ...
    def wait_for(self, generation: int, keys: list[str], within_s: float) -> None: ...
    def read_board(self, generation: int, key: str) -> bytes: ...


class Board(Store):
    """A view's board as torch's Store, for the forming of its group: what is set here, every worker of the view sees.

    Unlike TCPStore it needs no connection of its own (and no reverse DNS), and its waits end when the view is broken.
    """

    def __init__(self, channel: BoardChannel, generation: int) -> None:
        super().__init__()
        self._channel = channel
        self._generation = generation

    def set(self, key: str, value: str | bytes) -> None:
        self._channel.put(self._generation, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._channel.read_board(self._generation, key)

    def check(self, keys: list[str]) -> bool:
        try:
            return self._channel.look(self._generation, list(keys))
        except ConnectionError as broken:
            raise RuntimeError(str(broken)) from broken

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=_FORM_S)) -> None:
        """Wait for keys. Raises RuntimeError, as torch's stores do, when the view is broken or the time is up."""
        try:
            self._channel.wait_for(self._generation, list(keys), timeout.total_seconds())
        except (ConnectionError, TimeoutError) as failure:
            raise RuntimeError(str(failure)) from failure

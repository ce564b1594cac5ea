"""Copies that a thread makes while the caller computes; who needs their end makes what is left itself.

The thread holds the interpreter's lock for moments only: memmove is called without it, for a piece at a time. Nothing
depends on the thread: where none can be started, or it gets no processor, `finish` makes all copies. So nobody ever
waits for more than one piece.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

PIECE_BYTES = 2**23

Move = tuple[int, int, int]  # to, from, bytes

_memmove = ctypes.CDLL(None).memmove  # called without the interpreter's lock
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def move(moves: Iterable[Move]) -> None:
    """Now, in this thread."""
    for to, source, size in moves:
        _memmove(to, source, size)


class Copying:
    """Begun when it is made. keeps: what the memory at both ends belongs to, so that it stays"""

    def __init__(self, moves: Iterable[Move], keeps: object) -> None:
        self._keeps = keeps
        self._left = deque(_pieces(moves))
        self._bytes = sum(size for _, _, size in self._left)
        self._moved: deque[tuple[int, float]] = deque()  # bytes and seconds; one that an exception cut off is missing
        self._thread = threading.Thread(target=self._work, name="checkpoint-copying", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread is to be had: `finish` makes them all
            self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all is copied."""
        return sum(size for size, _ in [*self._moved]) == self._bytes

    @property
    def took_s(self) -> float:
        """Seconds that all pieces together have taken, whoever made them."""
        return sum(seconds for _, seconds in [*self._moved])

    def finish(self) -> None:
        """Makes what is left. All is copied on return, unless an exception had cut off a piece: ask `done`."""
        self._work()
        if self._thread.is_alive():
            self._thread.join()  # ends with the piece in hand

    def _work(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                to, source, size = self._left.popleft()
                begun_s = time.perf_counter()
                _memmove(to, source, size)
                self._moved.append((size, time.perf_counter() - begun_s))


def _pieces(moves: Iterable[Move]) -> Iterator[Move]:
    for to, source, size in moves:
        for start in range(0, size, PIECE_BYTES):
            yield to + start, source + start, min(PIECE_BYTES, size - start)

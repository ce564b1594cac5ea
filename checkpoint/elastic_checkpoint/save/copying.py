"""Copies that a thread, or a GPU, makes while the caller computes; whoever needs their end makes what is left itself.

The thread takes what the computing leaves of the processors, by its priority: where none is free it would stretch each
product of matrices whose other threads wait for the one that it displaced (2026-11-25, two busy cores: now and then by
six times the copy). It holds the interpreter's lock for moments only: memmove is called without it, for a piece at a
time. Nothing depends on the thread: where none can be started, or it gets no processor, `finish` makes all copies. So
nobody ever waits for it longer than for a piece. What a GPU copies is queued already, and only waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

PIECE_BYTES = 2**22
_NICENESS = 10  # a tenth of a processor that others want: at 19, who waits for the interpreter's lock could wait long

Move = tuple[int, int, int]  # to, from, bytes

_memmove = ctypes.CDLL(None).memmove  # called without the interpreter's lock
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def move(moves: list[Move]) -> None:
    """Now, in this thread."""
    for to, source, size in moves:
        _memmove(to, source, size)


class Streamed:
    """What a stream of a GPU was given to copy within `with Streamed.on(stream) as streamed`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._begun: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._ended: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    @classmethod
    @contextlib.contextmanager
    def on(cls, stream: torch.cuda.Stream) -> Iterator[Streamed]:
        streamed = cls(stream)
        streamed._begun.record(stream)
        yield streamed
        streamed._ended.record(stream)

    @property
    def done(self) -> bool:
        """Whether all is copied."""
        try:
            return bool(self._ended.query())
        except RuntimeError:  # a kernel has failed, and with it all that this process has on the GPU
            return False

    @property
    def took_s(self) -> float:
        """Of the stream; once it is done."""
        return float(self._begun.elapsed_time(self._ended)) / 1e3

    def comes_before_what_follows(self) -> None:
        """On the stream that the caller computes on."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._ended)

    def wait(self) -> None:
        """Until it is done. Raises RuntimeError where the GPU, or a kernel on it, has failed."""
        self._ended.synchronize()


@dataclass(frozen=True)
class Remainder:
    """What of a copy is not made yet: moves in this machine's memory, and what GPUs have begun."""

    moves: list[Move] = field(default_factory=list)
    streamed: list[Streamed] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.moves or self.streamed)


class Copying:
    """Begun when it is made. keeps: what the memory at both ends belongs to, so that it stays"""

    def __init__(self, remainder: Remainder, keeps: object) -> None:
        self._keeps = keeps
        self._streamed = remainder.streamed
        self._remaining = deque(_pieces(remainder.moves))
        self._bytes = sum(size for _, _, size in self._remaining)
        self._moved: list[tuple[int, float]] = []  # bytes and seconds; one that an exception cut off is missing
        self._thread = threading.Thread(target=self._work_aside, name="checkpoint-copying", daemon=True)
        if self._remaining:
            with contextlib.suppress(RuntimeError):  # no thread is to be had: `finish` makes all copies
                self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all is copied."""
        return sum(size for size, _ in [*self._moved]) == self._bytes and all(one.done for one in self._streamed)

    @property
    def took_s(self) -> float:
        """Seconds that all pieces together have taken, whoever made them."""
        return sum(seconds for _, seconds in [*self._moved]) + sum(one.took_s for one in self._streamed if one.done)

    def finish(self) -> None:
        """Makes what is left. All is copied on return, unless an exception had cut off a piece, or a GPU has failed:
        ask `done`."""
        self._work()
        if self._thread.is_alive():
            self._thread.join()  # ends with the piece in hand
        for one in self._streamed:
            with contextlib.suppress(RuntimeError):  # then it is not done, and who computes there meets the error
                one.wait()

    def _work_aside(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # of this thread alone
        self._work()

    def _work(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                to, source, size = self._remaining.popleft()
                begun_s = time.perf_counter()
                _memmove(to, source, size)
                self._moved.append((size, time.perf_counter() - begun_s))


def _pieces(moves: Iterable[Move]) -> Iterator[Move]:
    for to, source, size in moves:
        for start in range(0, size, PIECE_BYTES):
            yield to + start, source + start, min(PIECE_BYTES, size - start)

"""Shared memory that a state is copied into: two halves, so that one is filled while the other is being written.

The bytes are those of the objects, as they will lie in storage, each at the start of a page. Nothing in them says
whether a half is whole: that is the message to the writer process, which is sent when all is copied. So a process that
dies while it copies leaves nothing that anyone would read.

All memory is allocated at once, by posix_fallocate: too little of it is an error here and not a SIGBUS in the middle of
a copy. A page that is touched for the first time costs as much as copying eight, hence `touch`.

A forked child (a data loader's worker) has none of it: the mapping is not inherited, and the descriptor is closed at
once, so that memory which was given back here is not kept there.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence

from elastic_checkpoint.forks import close_in_children
from elastic_checkpoint.memory import free_bytes, mapped

PAGE = mmap.PAGESIZE
HALVES = 2


class NoRoom(Exception):
    """There is not enough memory; the text says how much is needed."""


class Arena:
    """The memory, seen from the process that fills it.

    memory  all of it, as a ctypes array; it is unmapped when nothing refers to it any more
    """

    def __init__(self, half_bytes: int) -> None:
        """Raise `NoRoom`."""
        self.half_bytes = _up(half_bytes)
        total = HALVES * self.half_bytes
        if total > (free := free_bytes()):
            raise NoRoom(f"{total:,} bytes of memory are needed, and {free:,} are available")
        self.fd = os.memfd_create("checkpoint-arena", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self.fd)
        close_in_children(self)
        try:
            os.posix_fallocate(self.fd, 0, total)
            self.memory = mapped(self.fd, total, mmap.MAP_SHARED, mmap.MADV_DONTFORK)
        except OSError as error:
            self.close()
            raise NoRoom(f"{total:,} bytes of shared memory are needed: {error}") from error

    def touch(self) -> None:
        """Give every page its place in this process, so that no copy waits for it."""
        import numpy as np  # which a writer process, whose arena is another's, does without

        np.frombuffer(self.memory, np.uint8)[::PAGE] = 0

    def close(self) -> None:
        """Close the descriptor. The memory goes with the last view into it. Idempotent."""
        self._close()

    close_in_child = close


class AttachedArena:
    """The same memory, read-only, seen from the process that writes it to storage."""

    def __init__(self, fd: int, half_bytes: int) -> None:
        self._half_bytes = half_bytes
        self._memory = memoryview(mmap.mmap(fd, HALVES * half_bytes, prot=mmap.PROT_READ))

    def read(self, half: int, sizes: Sequence[int]) -> list[memoryview]:
        """Return the runs of these sizes that lie in the half, in order (see `offsets`)."""
        base = half * self._half_bytes
        starts = offsets(sizes)
        if half not in range(HALVES) or starts[-1] > self._half_bytes:
            raise ValueError(f"{sum(sizes):,} bytes do not lie in half {half} of {self._half_bytes:,} bytes")
        return [self._memory[base + at : base + at + size] for at, size in zip(starts, sizes, strict=False)]


def offsets(sizes: Sequence[int]) -> list[int]:
    """Return where in a half runs of these sizes begin, each at a page; and, last, where all of them end."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + _up(size))
    return starts


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE

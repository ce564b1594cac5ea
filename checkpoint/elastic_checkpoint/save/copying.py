"""Copies that a thread, or a GPU, makes while the caller computes; whoever needs their end makes what is left itself.

The thread takes what the computing leaves of the processors, by its priority: where none is free it would stretch each
product of matrices whose other threads wait for the one that it displaced (2026-11-25, two busy cores: now and then by
six times the copy). It holds the interpreter's lock for moments only: memmove is called without it, for a piece at a
time. Nothing depends on the thread: where none can be started, or it gets no processor, `finish` makes all copies. So
nobody ever waits for it longer than for a piece. What a GPU copies is queued already, and only waited for.

Tensors may be copied so that the caller promises to leave as they are. A write is noticed all the same, by the tensor's
version: then the save is dropped, for nobody knows which of the values were copied. A version is counted after the
values are written. So it is looked at by the thread that writes them, when it is between two operations. What a fused
optimizer writes counts no version, nor what is written through `.data`, a numpy() view or another library's kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elastic_checkpoint.errors import StateChanged
from elastic_checkpoint.save.handle import Saving
from elastic_checkpoint.save.planner import Save
from elastic_checkpoint.save.ranks import Context

PIECE_BYTES = 2**22
_NICENESS = 10  # a tenth of a processor that others want: at 19, who waits for the interpreter's lock could wait long

Move = tuple[int, int, int]  # to, from, bytes

_memmove = ctypes.CDLL(None).memmove  # called without the interpreter's lock
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def move(moves: list[Move]) -> None:
    """Make these moves now, in this thread."""
    for to, source, size in moves:
        _memmove(to, source, size)


class StreamCopy:
    """What a stream of a GPU was given to copy, within `with StreamCopy.on(stream) as streamed`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._begun: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._ended: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    @classmethod
    @contextlib.contextmanager
    def on(cls, stream: torch.cuda.Stream) -> Iterator[StreamCopy]:
        streamed = cls(stream)
        streamed._begun.record(stream)
        yield streamed
        streamed._ended.record(stream)

    @property
    def done(self) -> bool:
        """Return whether all is copied."""
        try:
            return bool(self._ended.query())
        except RuntimeError:  # a kernel has failed, and with it all that this process has on the GPU
            return False

    @property
    def took_s(self) -> float:
        """Return for how many seconds it has copied."""
        return float(self._begun.elapsed_time(self._ended)) / 1e3

    def order_before_current_stream(self) -> None:
        """Have what follows on the stream that the caller computes on wait for it."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._ended)

    def wait(self) -> None:
        """Wait until it is done. Raises RuntimeError where the GPU, or a kernel on it, has failed."""
        self._ended.synchronize()


@dataclass(frozen=True)
class Remainder:
    """What of a copy is not made yet: moves in this machine's memory, and what GPUs have begun."""

    moves: list[Move] = field(default_factory=list)
    streamed: list[StreamCopy] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.moves or self.streamed)


class BackgroundCopy:
    """A copy in a thread, begun when this object is made; keeps: what owns the memory at both ends, so it stays."""

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
        """Return whether all is copied."""
        return sum(size for size, _ in [*self._moved]) == self._bytes and all(one.done for one in self._streamed)

    @property
    def took_s(self) -> float:
        """Return for how many seconds it has copied."""
        return sum(seconds for _, seconds in [*self._moved]) + sum(one.took_s for one in self._streamed if one.done)

    def finish(self) -> None:
        """Make what is left: all is copied on return, unless a piece was cut off or a GPU has failed; ask `done`."""
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


_SMALL_BYTES = 2**16  # copied in less time than it takes to come back to it
_WORTH_BYTES = 2**23  # a millisecond's copying

Versions = Mapping[str, tuple[int, int]]  # and where the values lie: share_memory_() moves them, and counts nothing


def versions_of(tensors: Mapping[str, torch.Tensor], steady: Iterable[torch.Tensor]) -> Versions:
    """Return the versions, by name, of large tensors of `steady`, to be copied later; none if not worth a thread."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in steady}
    found = {
        name: (tensor._version, tensor.data_ptr())
        for name, tensor in tensors.items()
        if tensor.nbytes >= _SMALL_BYTES
        and not tensor.is_inference()  # counts no versions
        and not (tensor.is_conj() or tensor.is_neg())  # copied by way of another one
        and tensor.untyped_storage().data_ptr() in memory
    }
    return found if sum(tensors[name].nbytes for name in found) >= _WORTH_BYTES else {}


@dataclass(eq=False)
class Filling:
    """A half of the arena that is being filled; versions: of the tensors that are copied now, when the save began."""

    half: int
    save: Save
    saving: Saving
    context: Context
    copying: BackgroundCopy
    versions: Versions

    def written(self) -> tuple[str, ...]:
        """Return those that have been written to since the save began."""
        tensors = self.save.tensors
        now = {name: (tensors[name]._version, tensors[name].data_ptr()) for name in self.versions}
        return tuple(name for name, version in self.versions.items() if now[name] != version)


def changed(step: int, tensors: tuple[str, ...]) -> StateChanged:
    named = ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
    return StateChanged(
        f"step {step} was not saved: {named} changed while the state was being copied\n"
        "  found  they were promised to stay as they are until the handle's staged() returns\n"
        "  state  nothing of it was committed; the previous checkpoint stays the newest\n"
        "  next   save again, without that promise; or call staged() before what writes to them",
        step=step,
        tensors=tensors,
    )

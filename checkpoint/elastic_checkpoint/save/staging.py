"""Copies a state's tensors into one half of an arena, in about the time of one memcpy of them.

Where each piece goes is worked out once per plan. What lies contiguous in this machine's memory, which is nearly
everything, is moved by memmove: torch's own copy joins a team of threads for every tensor, and where others use the
machine too that took five times as long (2026-11, 1,200 tensors, 2 cores). Strided tensors are laid out by torch.

What is promised to stay as it is for a while may be left out, for somebody to copy while training goes on (copying.py).

From a GPU, the arena's memory is pinned and copied to on a stream of its own, behind the work that was already queued
and beside what comes after it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from elastic_checkpoint.format.shards import Piece, run_start
from elastic_checkpoint.format.tensors import INTEGERS
from elastic_checkpoint.save.arena import Arena, offsets
from elastic_checkpoint.save.copying import Move, Remainder, StreamCopy, move
from elastic_checkpoint.save.planner import Plan

_THREADS_MAX = 4  # more do not copy faster than memory takes it
_WORTH_THREADS_BYTES = 2**26

# torch copies these bit by bit. All others go through integers of the same width.
_COPIED_AS_THEY_ARE = {
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


class CannotPin(Exception):
    """Memory cannot be locked for a GPU to copy into; the text says why."""


class Stage:
    """Where the tensors of one plan go in one arena."""

    def __init__(self, plan: Plan, arena: Arena, *, pinned: bool, threads: int | None = None) -> None:
        """Make the stage. Raises `CannotPin`.

        pinned   whether tensors of a GPU will be copied: then the memory is locked, which takes a while
        threads  that copy at the same time; by default up to 4, and no more than half of the processors
        """
        self.plan = plan
        self._threads = threads or max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)) // 2))
        self._memory = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self._half_bytes = arena.half_bytes
        self._starts = offsets(plan.sizes)
        self._pieces = [
            (piece, at + piece.start, run_start(piece, *plan.kinds[piece.tensor]))
            for at, shard in zip(self._starts, plan.shards, strict=False)
            for piece in shard.pieces
        ]
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        if pinned:
            _pin(self, self._memory)

    def copy(
        self, half: int, tensors: dict[str, torch.Tensor], texts: list[bytes], later: Collection[str] = ()
    ) -> Remainder:
        """Fill the half: the plan's objects, then `texts`. On return the tensors may be changed.

        Not so those named in `later`: of them is returned what is still to be moved, and what GPUs are copying. Of them
        what lies in this machine's memory, but not contiguous, is copied all the same. If any are named, GPUs may be
        copying the others, too, before all that is queued on their current streams from here on.
        """
        base = half * self._half_bytes
        headers = [shard.header for shard in self.plan.shards]
        ends = offsets([*self.plan.sizes, *map(len, texts)])[len(headers) :]
        for at, text in zip([*self._starts[: len(headers)], *ends], [*headers, *texts], strict=False):
            self._memory[base + at : base + at + len(text)].numpy()[:] = memoryview(text)

        to = self._memory.data_ptr() + base
        moves: list[Move] = []
        remaining: list[Move] = []
        others: list[tuple[torch.Tensor, torch.Tensor]] = []
        others_later: list[tuple[torch.Tensor, torch.Tensor]] = []
        for piece, at, first in self._pieces:
            tensor = tensors[piece.tensor]
            if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
                waits = remaining if piece.tensor in later else moves
                waits.append((to + at, tensor.data_ptr() + first, piece.bytes))
            else:
                waiting = others_later if tensor.is_cuda and piece.tensor in later else others
                waiting.append(_laid_out(self._memory[base + at : base + at + piece.bytes], tensor, piece))
        streamed = self._begin_on_gpus(others)
        streamed_later = self._begin_on_gpus(others_later)
        self._move(moves)
        for into, source in others:
            if not source.is_cuda:
                into.copy_(source)
        for one in streamed:
            if later:
                one.order_before_current_stream()
            else:
                one.wait()
        return Remainder(remaining, streamed_later + streamed if later else [])

    def _move(self, moves: list[Move]) -> None:
        if self._threads == 1 or sum(size for _, _, size in moves) < _WORTH_THREADS_BYTES:
            move(moves)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(move, [moves[first :: self._threads] for first in range(self._threads)]))

    def _begin_on_gpus(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[StreamCopy]:
        """Queue the copies from GPUs."""
        begun = []
        for device in {source.device for _, source in pairs if source.is_cuda}:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = self._streams[device]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream), StreamCopy.on(stream) as streamed:
                for into, source in pairs:
                    if source.device == device:
                        into.copy_(source, non_blocking=True)
            begun.append(streamed)
        return begun


def _laid_out(memory: torch.Tensor, tensor: torch.Tensor, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the piece's place and its box of the tensor, so that torch's copy between them keeps every bit."""
    for axis, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
        tensor = tensor.narrow(axis, offset, size)
    if tensor.is_cuda:
        tensor = tensor.resolve_conj().resolve_neg()  # else the host would, before all of it has arrived
    if tensor.dtype not in _COPIED_AS_THEY_ARE:
        tensor = tensor.resolve_conj().resolve_neg().view(INTEGERS[tensor.dtype.itemsize])
    return memory.view(tensor.dtype).view(piece.sizes), tensor


def _pin(owner: Stage, memory: torch.Tensor) -> None:
    """Lock the memory for as long as `owner` lives, so that a GPU copies into it by itself. Raises `CannotPin`."""
    try:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise CannotPin(f"{memory.nbytes:,} bytes cannot be locked for the GPU to copy into: {error}") from error
    weakref.finalize(owner, runtime.cudaHostUnregister, memory.data_ptr())

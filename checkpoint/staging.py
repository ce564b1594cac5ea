"""Copies a state's tensors into one half of an arena, in one call into torch and in about the time of one memcpy.

What a copy needs is worked out once per plan: where each piece goes, as a tensor over the arena's memory. From a GPU,
the arena's memory is pinned and copied to on a stream of its own, behind the work that was already queued; the copy is
complete on return. (2026-11: the GPU's path was never run, for want of a GPU.)
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from checkpoint.arena import HALVES, Arena, places
from checkpoint.plan import Plan
from checkpoint.shards import Piece

# torch copies these bit by bit. All others go through integers of the same width.
_COPIED_AS_THEY_ARE = {
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Stage:
    """Where the tensors of one plan go in one arena."""

    def __init__(self, plan: Plan, arena: Arena, *, pinned: bool) -> None:
        """pinned  whether tensors of a GPU will be copied: then the memory is locked, which takes a while"""
        self.plan = plan
        self._starts = places(plan.sizes)
        self._memory = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self._half_bytes = arena.half_bytes
        pieces = [piece for shard in plan.shards for piece in shard.pieces]
        self._boxes = [(piece, piece.sizes != plan.kinds[piece.tensor][0]) for piece in pieces]
        self._into = [self._views(half) for half in range(HALVES)]
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        if pinned:
            _pin(self, self._memory)

    def copy(self, half: int, tensors: dict[str, torch.Tensor], texts: list[bytes]) -> None:
        """Fills the half: the plan's objects, then `texts`. On return the tensors may be changed."""
        base = half * self._half_bytes
        for at, shard in zip(self._starts, self.plan.shards, strict=False):
            self._write(base + at, shard.header)
        ends = places([*self.plan.sizes, *map(len, texts)])[len(self.plan.sizes) :]
        for at, text in zip(ends, texts, strict=False):
            self._write(base + at, text)
        sources = [_box(tensors[piece.tensor], piece, cut) for piece, cut in self._boxes]
        devices = {source.device for source in sources if source.device.type != "cpu"}
        if not devices:
            torch._foreach_copy_(self._into[half], sources)
            return
        self._copy_from_devices(devices, self._into[half], sources)

    def _copy_from_devices(
        self, devices: set[torch.device], into: list[torch.Tensor], sources: list[torch.Tensor]
    ) -> None:
        begun = []
        for device in devices:
            mine = [pair for pair in zip(into, sources, strict=True) if pair[1].device == device]
            if device.type != "cuda":
                torch._foreach_copy_([to for to, _ in mine], [source for _, source in mine])
                continue
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for to, source in mine:
                    to.copy_(source, non_blocking=True)
            begun.append(stream)
        for to, source in zip(into, sources, strict=True):
            if source.device.type == "cpu":
                to.copy_(source)
        for stream in begun:
            stream.synchronize()

    def _write(self, at: int, text: bytes) -> None:
        self._memory[at : at + len(text)].numpy()[:] = memoryview(text)

    def _views(self, half: int) -> list[torch.Tensor]:
        """Each piece's place, as a tensor of its shape and of the dtype that it is copied in."""
        views = []
        for at, shard in zip(self._starts, self.plan.shards, strict=False):
            for piece in shard.pieces:
                start = half * self._half_bytes + at + piece.start
                dtype = _copied_as(self.plan.kinds[piece.tensor][1])
                views.append(self._memory[start : start + piece.bytes].view(dtype).view(piece.sizes))
        return views


def _copied_as(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in _COPIED_AS_THEY_ARE else _INTEGERS[dtype.itemsize]


def _box(tensor: torch.Tensor, piece: Piece, cut: bool) -> torch.Tensor:
    if cut:
        for axis, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
            tensor = tensor.narrow(axis, offset, size)
    if tensor.dtype not in _COPIED_AS_THEY_ARE:
        tensor = tensor.resolve_conj().resolve_neg().view(_INTEGERS[tensor.dtype.itemsize])
    return tensor


def _pin(owner: Stage, memory: torch.Tensor) -> None:
    """Locks the memory for as long as `owner` lives, so that a GPU copies into it by itself."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    weakref.finalize(owner, runtime.cudaHostUnregister, memory.data_ptr())

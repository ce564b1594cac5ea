"""Which rank writes which boxes of which tensors, when several ranks hold a state together.

    every rank: what it holds  ->  rank 0: who writes what  ->  every rank: its objects

torch's planner says which box of a DTensor a rank holds, and deals what several ranks hold to the one with the fewest
bytes so far: so every byte is written once. Before that, boxes are cut small enough for the shares of replicated
tensors to be even, however large one tensor is. A tensor that is no DTensor counts as the same on all ranks.

Plans travel as JSON. The objects of a save are numbered through all ranks, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, SavePlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from checkpoint.errors import CheckpointError
from checkpoint.format import manifest
from checkpoint.format.dtypes import DTYPES, NAMES
from checkpoint.format.hashing import xxh3
from checkpoint.format.plan import Plan
from checkpoint.format.shards import Box, Piece, cut, into_shards
from checkpoint.format.tree import is_sharded
from checkpoint.group.tensor import local_part

SHARES = 16  # pieces that a rank's share of the replicated tensors has, at least: the shares differ by less than one
_PIECE_BYTES_MIN = 2**16
_RANK_0_BYTES = 2**14

Held = dict[str, Any]  # name -> [dtype, shape, whether it is replicated, [[offsets, sizes], ...]], as JSON
Boxes = list[list[Any]]  # [name, offsets, sizes], as JSON


class Signer:
    """Makes signatures of a rank's tensors: the same for as long as a plan made from them holds.

    Seeing that nothing changed since the last one takes half a millisecond for 1,200 tensors; making one, several.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[Any, ...]] | None = None
        self._signature = ""

    def sign(self, tensors: dict[str, torch.Tensor]) -> str:
        kinds = {name: _kind(tensor) for name, tensor in tensors.items()}
        if kinds != self._kinds or list(kinds) != list(self._kinds):
            self._kinds, self._signature = kinds, _signature(tensors)
        return self._signature


def _kind(tensor: Any) -> tuple[Any, ...]:
    sharded = (tensor.placements, tensor.device_mesh) if is_sharded(tensor) else ()
    return (tensor.shape, tensor.dtype, *sharded)


def _signature(tensors: dict[str, torch.Tensor]) -> str:
    kinds = [
        (name, tuple(tensor.shape), str(tensor.dtype), _spread(tensor) if is_sharded(tensor) else None)
        for name, tensor in tensors.items()
    ]
    return xxh3(repr(kinds).encode("utf-8", "surrogatepass"))


class Holding:
    """What this rank holds of the tensors, by torch's planner."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        """Raises CheckpointError where the planner cannot tell."""
        self._tensors = tensors
        self._planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._planner.set_up_planner(tensors)
        try:
            items = self._planner.create_local_plan().items
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"torch's planner cannot tell which part of the state this rank holds: {error}\n"
                "  state  nothing was saved\n  next   save the whole tensors (`.full_tensor()`)"
            ) from error
        self._items = {item.index.fqn: item for item in items}

    def described(self, ranks: int, shard_bytes: int) -> Held:
        """For rank 0. Without tensors that have no elements, here or at all."""
        replicated = {name for name, tensor in self._tensors.items() if not is_sharded(tensor)}
        share = sum(self._tensors[name].nbytes for name in replicated) // (ranks * SHARES)
        limit = min(shard_bytes, max(share, _PIECE_BYTES_MIN))
        held: Held = {}
        for name, item in self._items.items():
            tensor = self._tensors[name]
            offsets, sizes = _box(item)
            most = limit if name in replicated else shard_bytes
            boxes = [(_add(offsets, inner), part) for inner, part in cut(sizes, tensor.dtype.itemsize, most)]
            held[name] = [NAMES[tensor.dtype], list(tensor.shape), name in replicated, boxes]
        return held

    def begins(self, name: str) -> tuple[int, ...]:
        """Where in the whole tensor this rank's part of it begins."""
        return _box(self._items[name])[0]


def local_parts(layout: Layout, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """This rank's parts of the tensors of which it writes something; they share memory."""
    with torch.no_grad():  # else a DTensor makes a node of autograd's graph for each
        return {name: local_part(tensors[name]).detach() for name in layout.plan.kinds}


def dealt(held: Sequence[Held]) -> list[Boxes]:
    """What each rank writes, every box of every tensor once. On rank 0.

    Raises CheckpointError where the ranks hold different tensors, or together not the whole of one.
    """
    _check_same(held)
    order = {name: place for place, name in enumerate(held[0])}
    held = [held[0], *({name: one[name] for name in one if not _of_rank_0(one[name])} for one in held[1:])]
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({}, is_coordinator=True)
    try:
        plans, _ = planner.create_global_plan([SavePlan(_write_items(one)) for one in held])
    except ValueError as error:
        raise CheckpointError(
            f"the ranks do not hold the whole state together: {error}\n"
            "  state  nothing was saved\n"
            "  next   save on every rank that holds a part; DTensors on a part of the ranks are not carried"
        ) from error
    parts: list[Boxes] = []
    for plan in plans:
        boxes: Boxes = [[item.index.fqn, *_box(item)] for item in plan.items]
        parts.append(sorted(boxes, key=lambda box: (order[box[0]], box[1])))
    return parts


def _of_rank_0(described: list[Any]) -> bool:
    """Small replicated tensors are rank 0's: buffers such as BatchNorm's differ from rank to rank under DDP, and a
    checkpoint must not mix those of several."""
    dtype, shape, replicated, _ = described
    return bool(replicated) and math.prod(shape) * DTYPES[dtype].itemsize <= _RANK_0_BYTES


@dataclass(frozen=True, eq=False)
class Layout:
    """How one rank's share lies in objects.

    plan     its objects; its pieces' offsets count from the beginning of this rank's part of the tensor
    first    the number of its first object in the save
    objects  in the save, and
    bytes    of all of them
    """

    plan: Plan
    first: int
    objects: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Whole:
    """All objects of the save, for its manifest. On rank 0.

    counts  objects per rank
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    table: bytes


def whole(parts: Sequence[Boxes], tensors: dict[str, torch.Tensor], shard_bytes: int) -> Whole:
    """The objects of all ranks. Of `tensors` dtypes and shapes are looked at."""
    shards = [into_shards(_pieces(boxes, tensors), tensors, shard_bytes) for boxes in parts]
    objects = [shard for mine in shards for shard in mine]
    return Whole(tuple(s.size for s in objects), tuple(map(len, shards)), manifest.table(tensors, objects))


def layout(part: Held, holding: Holding, tensors: dict[str, torch.Tensor], shard_bytes: int) -> Layout:
    """This rank's objects, the same as `whole` plans for it. part: rank 0's answer, with the boxes that it writes"""
    boxes: Boxes = part["boxes"]
    shards = tuple(
        replace(
            shard,
            pieces=tuple(
                replace(piece, offsets=_add(piece.offsets, holding.begins(piece.tensor), -1)) for piece in shard.pieces
            ),
        )
        for shard in into_shards(_pieces(boxes, tensors), tensors, shard_bytes)
    )
    local = {name: local_part(tensors[name]) for name in dict.fromkeys(name for name, _, _ in boxes)}
    kinds = {name: (tensor.shape, tensor.dtype) for name, tensor in local.items()}
    return Layout(Plan(kinds, shards, b""), part["first"], part["objects"], part["bytes"])


@dataclass(frozen=True)
class _Item(WriteItem):
    """Counts the bytes of its box; torch's counts those of the whole tensor."""

    def tensor_storage_size(self) -> int | None:
        assert self.tensor_data is not None
        return math.prod(self.tensor_data.chunk.sizes) * self.tensor_data.properties.dtype.itemsize


def _write_items(held: Held) -> list[WriteItem]:
    """In the order in which the planner deals them: rank 0's own first, for the rest makes up for them; then replicated
    boxes, the largest before the others."""
    items: list[WriteItem] = []
    for name, (dtype, shape, _, boxes) in held.items():
        for offsets, sizes in boxes:
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            data = TensorWriteData(chunk, TensorProperties(dtype=DTYPES[dtype]), torch.Size(shape))
            items.append(_Item(MetadataIndex(name, torch.Size(offsets)), WriteItemType.SHARD, tensor_data=data))

    def turn(item: WriteItem) -> tuple[bool, bool, int]:
        described = held[item.index.fqn]
        return not _of_rank_0(described), not described[2], -(item.tensor_storage_size() or 0)

    return sorted(items, key=turn)


def _check_same(held: Sequence[Held]) -> None:
    """That all ranks know the same tensors, as different as their parts are."""
    kinds = [{name: entry[:3] for name, entry in one.items()} for one in held]
    for rank, kind in enumerate(kinds):
        differing = sorted(n for n in {*kind, *kinds[0]} if kind.get(n) != kinds[0].get(n))
        if differing:
            name = differing[0]
            raise CheckpointError(
                f"the ranks hold different tensors: {len(differing)} differ between 0 and {rank}, such as {name}\n"
                f"  found  {kinds[0].get(name, 'nothing')} on rank 0, {kind.get(name, 'nothing')} on rank {rank} "
                "(dtype, shape, whether it is replicated)\n"
                "  state  nothing was saved\n"
                "  next   give all ranks the same state; what is of one rank only, gather first"
            )


def _pieces(boxes: Boxes, tensors: dict[str, torch.Tensor]) -> list[Piece]:
    return [
        Piece(name, tuple(offsets), tuple(sizes), math.prod(sizes) * tensors[name].dtype.itemsize)
        for name, offsets, sizes in boxes
    ]


def _box(item: WriteItem) -> Box:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return tuple(chunk.offsets), tuple(chunk.sizes)


def _add(one: Sequence[int], other: Sequence[int], sign: int = 1) -> tuple[int, ...]:
    return tuple(a + sign * b for a, b in zip(one, other, strict=True))


def _spread(tensor: Any) -> str:
    mesh = tensor.device_mesh
    return f"{tensor.placements} {mesh.mesh.tolist()} {mesh.get_coordinate()}"

"""Which rank writes which boxes of which tensors, when several ranks hold a state together.

    every rank: what it holds  ->  rank 0: who writes what  ->  every rank: its objects

torch's planner says which box of a DTensor a rank holds, and deals what several ranks hold to the one with the fewest
bytes so far: so every byte is written once. Before that, boxes are cut small enough for the shares of replicated
tensors to be even, however large one tensor is. A tensor that is no DTensor is the same on all ranks, and a box of a
DTensor on all that hold it, which they compare before (differences.py); or it is marked: as each rank's own, which that
rank writes, or as rank 0's.

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

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format import manifest
from elastic_checkpoint.format.document import is_sharded
from elastic_checkpoint.format.hashing import xxh3
from elastic_checkpoint.format.marks import Marks
from elastic_checkpoint.format.shards import Box, Piece, cut, into_shards
from elastic_checkpoint.format.tensors import DTYPES, NAMES, local_part
from elastic_checkpoint.save.planner import Plan

SHARES = 16  # pieces that a rank's share of the replicated tensors has, at least: the shares differ by less than one
_PIECE_BYTES_MIN = 2**16
_RANK_0_BYTES = 2**14

Held = dict[str, Any]  # name -> [dtype, shape, how it is held, [[offsets, sizes], ...]], as JSON
ALL, SHARD, RANK_0, OWN = "the same on all ranks", "a DTensor", "rank 0's", "each rank's own"  # how
Boxes = list[list[Any]]  # [name, offsets, sizes], as JSON


class Signer:
    """Makes signatures of a rank's tensors: the same for as long as a plan made from them holds.

    Seeing that nothing changed since the last one takes half a millisecond for 1,200 tensors; making one, several.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[Any, ...]] | None = None
        self._marked: tuple[set[str], ...] = ()
        self._signature = ""

    def sign(self, tensors: dict[str, torch.Tensor], marks: Marks) -> str:
        kinds = {name: _kind(tensor) for name, tensor in tensors.items()}
        marked = (marks.own_tensors, marks.rank0, marks.buffers)
        if kinds != self._kinds or list(kinds) != list(self._kinds) or marked != self._marked:
            self._kinds, self._marked = kinds, marked
            self._signature = _signature(tensors) + xxh3(repr([sorted(names) for names in marked]).encode())
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


class LocalTensors:
    """What this rank holds of the tensors, by torch's planner."""

    def __init__(self, tensors: dict[str, torch.Tensor], marks: Marks) -> None:
        """Raise CheckpointError where the planner cannot tell."""
        self._tensors = tensors
        self._marks = marks
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
        """Return what rank 0 is told. Without tensors that have no elements, here or at all."""
        how = {name: self._how(name) for name in self._tensors}
        replicated = {name for name in how if how[name] == ALL}
        share = sum(self._tensors[name].nbytes for name in replicated) // (ranks * SHARES)
        limit = min(shard_bytes, max(share, _PIECE_BYTES_MIN))
        held: Held = {}
        for name, item in self._items.items():
            tensor = self._tensors[name]
            offsets, sizes = _box(item)
            most = limit if name in replicated else shard_bytes
            boxes = [(_add(offsets, inner), part) for inner, part in cut(sizes, tensor.dtype.itemsize, most)]
            held[name] = [NAMES[tensor.dtype], list(tensor.shape), how[name], boxes]
        return held

    def _how(self, name: str) -> str:
        if is_sharded(self._tensors[name]):
            return SHARD
        if name in self._marks.own_tensors:
            return OWN
        small = self._tensors[name].nbytes <= _RANK_0_BYTES  # one piece, and not one for each of many ranks
        return RANK_0 if small or name in self._marks.rank0 or name in self._marks.buffers else ALL

    def begins(self, name: str) -> tuple[int, ...]:
        """Return where in the whole tensor this rank's part of it begins."""
        return _box(self._items[name])[0]


def local_parts(layout: Layout, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return this rank's parts of the tensors of which it writes something; they share memory."""
    with torch.no_grad():  # else a DTensor makes a node of autograd's graph for each
        return {name: local_part(tensors[name]).detach() for name in layout.plan.kinds}


def assign_boxes(held: Sequence[Held]) -> list[Boxes]:
    """Return what each rank writes, every box of every tensor once. On rank 0.

    Raises CheckpointError where the ranks hold different tensors, or together not the whole of one.
    """
    _check_same(held)
    order = {name: position for position, name in enumerate(dict.fromkeys(name for one in held for name in one))}
    held = [held[0], *({name: one[name] for name in one if one[name][2] != RANK_0} for one in held[1:])]
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


def kinds_of(held: Sequence[Held], tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of all ranks by their names, of other ranks' own ones only dtypes and shapes."""
    others = {name: one[name] for one in held for name in one if name not in tensors}
    return tensors | {
        name: torch.empty(shape, dtype=DTYPES[dtype], device="meta") for name, (dtype, shape, _, _) in others.items()
    }


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
class GlobalLayout:
    """All objects of the save, for its manifest. On rank 0.

    counts  objects per rank
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    table: bytes


def whole(parts: Sequence[Boxes], tensors: dict[str, torch.Tensor], shard_bytes: int) -> GlobalLayout:
    """Return the objects of all ranks. Of `tensors` dtypes and shapes are looked at."""
    shards = [into_shards(_pieces(boxes, tensors), tensors, shard_bytes) for boxes in parts]
    objects = [shard for mine in shards for shard in mine]
    return GlobalLayout(tuple(s.size for s in objects), tuple(map(len, shards)), manifest.table(tensors, objects))


def layout(part: Held, holding: LocalTensors, tensors: dict[str, torch.Tensor], shard_bytes: int) -> Layout:
    """Return this rank's objects, the same as `whole` plans for it; part: rank 0's answer, with the boxes it writes."""
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
    """Return the items as the planner deals them: rank 0's own, then replicated boxes, each the largest first."""
    items: list[WriteItem] = []
    for name, (dtype, shape, _, boxes) in held.items():
        for offsets, sizes in boxes:
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            data = TensorWriteData(chunk, TensorProperties(dtype=DTYPES[dtype]), torch.Size(shape))
            items.append(_Item(MetadataIndex(name, torch.Size(offsets)), WriteItemType.SHARD, tensor_data=data))

    def order(item: WriteItem) -> tuple[bool, bool, int]:
        described = held[item.index.fqn]
        return described[2] not in (RANK_0, OWN), described[2] == SHARD, -(item.tensor_storage_size() or 0)

    return sorted(items, key=order)


def _check_same(held: Sequence[Held]) -> None:
    """Raise CheckpointError unless all ranks know the same tensors, as different as their parts are."""
    check_same_kinds([{name: entry[:3] for name, entry in one.items() if entry[2] != OWN} for one in held])


def check_same_kinds(kinds: Sequence[dict[str, Any]]) -> None:
    """Raise CheckpointError where ranks differ in what must be the same on all.

    kinds  of each rank: name -> what must be the same on all. Raises CheckpointError.
    """
    for rank, kind in enumerate(kinds):
        differing = sorted(n for n in {*kind, *kinds[0]} if kind.get(n) != kinds[0].get(n))
        if differing:
            name = differing[0]
            raise CheckpointError(
                f"the ranks hold different tensors: {len(differing)} differ between 0 and {rank}, such as {name}\n"
                f"  found  {kinds[0].get(name, 'nothing')} on rank 0, {kind.get(name, 'nothing')} on rank {rank} "
                "(dtype, shape, how it is held)\n"
                "  state  nothing was saved\n"
                "  next   give all ranks the same state; what is each rank's own, name in per_rank=[...]"
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

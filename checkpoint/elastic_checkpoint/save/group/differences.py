"""Do the ranks that save together hold the same, where they should? Found before anything is committed.

    every rank: one hash of its plain values, one of its tensors, one of its buffers,
                and one of its parts of DTensors that other ranks hold, too (HSDP's replicas)
      ->  rank 0: equal?  ->  (if not: a hash of each entry)  ->  rank 0: which differ, and on which ranks

The first goes with what ranks say at every save; the second costs a round more, and ends in an error that names the
entries and the way out, unless only an order differs. What is marked (marks.py) may differ; that buffers do is logged
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elastic_checkpoint.errors import RanksDiffer
from elastic_checkpoint.format.document import TAG, Document, is_sharded
from elastic_checkpoint.format.dtypes import name_of
from elastic_checkpoint.format.hashing import to_json, xxh3
from elastic_checkpoint.format.leaves import leaves
from elastic_checkpoint.format.marks import Marks
from elastic_checkpoint.format.tensors import local_part
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.save.group import replicas
from elastic_checkpoint.save.group.layout import check_same_kinds

_SHOWN = 5

Log = Callable[[str], None]


class Replica:
    """What this rank holds of what is the same on all ranks."""

    def __init__(
        self, document: Document, tensors: dict[str, torch.Tensor], marks: Marks, *, ranks: int, trusted: bool
    ) -> None:
        """Take this rank's tensors; trusted: no tensor is hashed."""
        self._document, self._marks, self._trusted = document, marks, trusted
        alike = {n: t for n, t in tensors.items() if not is_sharded(t) and n not in marks.own_tensors}
        # Apart from parameters: under DDP buffers do differ between two forward passes, which is no error.
        self._buffers = {n: alike[n] for n in alike if n in marks.buffers}
        self._tensors = {n: t for n, t in alike.items() if n not in marks.rank0 and n not in marks.buffers}
        self._parts = {} if trusted else held_twice(tensors, ranks)

    def said(self) -> Message:
        """Return what goes with this rank's message at every save."""
        values = self._values() if self._marks.rank0_paths else self._document
        return {
            "values": xxh3(to_json(values)),
            "tensors": None if self._trusted else replicas.digest(self._tensors),
            "buffers": None if self._trusted or not self._buffers else replicas.digest(self._buffers),
            "parts": {part: replicas.digest(tensors) for part, tensors in self._parts.items()},
        }

    def entries(self) -> Message:
        """Return what tells where the difference is."""
        return {
            "values": self._values(),
            "kinds": {n: [name_of(t.dtype), list(t.shape)] for n, t in self._tensors.items()},
            "tensors": {} if self._trusted else replicas.each(self._tensors),
            "parts": {n: [part, h] for part, tensors in self._parts.items() for n, h in replicas.each(tensors).items()},
        }

    def _values(self) -> dict[str, str]:
        """Return every plain value by its path, but for those of which rank 0's are saved."""
        return {
            path: to_json(leaf).decode("ascii") if _is_short(leaf) else f"a value with hash {xxh3(to_json(leaf))}"
            for path, leaf in leaves(self._document)
            if not self._marks.rank0_paths.match(path)
        }


def differ(said: Sequence[Message]) -> bool:
    """Return whether what the ranks say (`Replica.said`) differs, beyond what is marked."""
    if any(one[what] != said[0][what] for one in said for what in ("values", "tensors")):
        return True
    found = {(part, digest) for one in said for part, digest in one["parts"].items()}
    # More digests than parts: two ranks hold one part otherwise.
    return len(found) > len({part for part, _ in found})


def buffers_differ(said: Sequence[Message]) -> bool:
    return any(one["buffers"] != said[0]["buffers"] for one in said)


BUFFERS = (
    "buffers of modules (BatchNorm's running statistics, most likely) differ between the ranks, as they do under DDP "
    "between two forwards: rank 0's are saved, and loaded on all ranks; DDP takes rank 0's at the next forward, too. "
    "per_rank=['model.*.running_*'] or the like keeps each rank's own"
)


def compare(said: Sequence[Message]) -> None:
    """Raise RanksDiffer, which names the entries in which these differ; nothing, where only an order differs."""
    check_same_kinds([one["kinds"] for one in said])
    values = _differing([one["values"] for one in said])
    tensors = _differing([one["tensors"] for one in said])
    parts = _differing_parts([one["parts"] for one in said])
    entries = {**values, **tensors, **parts}
    if not entries:
        return
    lines = []
    for path, ranks in list(entries.items())[:_SHOWN]:
        rank = ranks[0]
        found = [one["values"].get(path, "nothing") for one in (said[0], said[rank])]
        shown = f": {found[0]} on rank 0, {found[1]} on rank {rank}" if path in values else ""
        if path in parts:
            shown = ": another copy of a part of this DTensor than a rank before holds"
        lines.append(f"  {path or 'the state'} on {_ranks(ranks)}{shown}")
    more = [f"  and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
    raise RanksDiffer(
        f"the ranks differ in {len(entries)} {'entry' if len(entries) == 1 else 'entries'} of the state that "
        "count as the same on all of them; these ranks hold something else than the first that holds it:\n"
        + "\n".join([*lines, *more])
        + "\n  state  nothing was saved\n"
        + _advice(next((path for path in entries if path not in parts), None)),
        entries=entries,
    )


def held_twice(tensors: dict[str, torch.Tensor], ranks: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return what tells one part of DTensors from others -> this rank's parts by name, where others hold the same.

    Ranks at one coordinate of meshes of one shape hold the same boxes, also if they are two.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if not is_sharded(tensor):
            continue
        mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
        coordinate = mesh.get_coordinate()
        cut = [axis for axis, placement in enumerate(placements) if not placement.is_replicate()]
        if coordinate is not None and math.prod(mesh.size(axis) for axis in cut) < ranks:
            part = repr([tuple(mesh.shape), placements, [coordinate[axis] for axis in cut]])
            with torch.no_grad():  # else it makes a node of autograd's graph
                found.setdefault(part, {})[name] = local_part(tensor).detach()
    return found


def _advice(name: str | None) -> str:
    """Return what to do about ranks that differ.

    name  of an entry that may be named as meant to differ
    """
    parted = "find where the ranks parted: from there on they train different models"
    if name is None:
        return f"  next   {parted}"
    return (
        "  next   name what is meant to differ when the Checkpointer is made:\n"
        f"         per_rank=[{name!r}] saves each rank's own, and gives it back to that rank\n"
        f"         rank0=[{name!r}] saves rank 0's, and gives it to all\n"
        f"         If it should be the same, {parted}"
    )


def _differing_parts(tables: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Name -> the ranks that hold a part of this tensor otherwise than the first that holds this part."""
    first: dict[tuple[str, str], str] = {}
    found: dict[str, list[int]] = {}
    for rank, table in enumerate(tables):
        for name, (part, digest) in table.items():
            if first.setdefault((name, part), digest) != digest:
                found.setdefault(name, []).append(rank)
    return found


def _differing(tables: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Return key -> the ranks that have something else there than rank 0."""
    keys = dict.fromkeys(key for table in tables for key in table)
    found = {key: [rank for rank, table in enumerate(tables) if table.get(key) != tables[0].get(key)] for key in keys}
    return {key: ranks for key, ranks in found.items() if ranks}


def _is_short(leaf: Document) -> bool:
    if type(leaf) is dict and leaf.get(TAG) in ("tensor", "ndarray"):
        return True
    return len(str(leaf)) <= 60


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"

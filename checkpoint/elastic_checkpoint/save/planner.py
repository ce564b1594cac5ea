"""What a save consists of: which tensors, in which shards, and the draft of its manifest. Nothing is copied or written.

Names, shapes and dtypes hardly ever change while a run goes on, so the plan made from them is kept: planning 1,200
tensors takes about 10 ms, seeing that it still holds half a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format import manifest
from elastic_checkpoint.format.decoding import decode
from elastic_checkpoint.format.document import Document, Tree
from elastic_checkpoint.format.draft import Draft
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.marks import Marks, Patterns
from elastic_checkpoint.format.names import STEP_MAX, CommitId, new_nonce
from elastic_checkpoint.format.shards import Shard, plan_shards
from elastic_checkpoint.format.tree import encode

Kind = tuple[torch.Size, torch.dtype]


@dataclass(frozen=True, eq=False)
class Plan:
    """Where the bytes of a state of these names, shapes and dtypes lie.

    kinds  each tensor's shape and dtype, by its name
    table  the manifest's table of tensors, as JSON
    """

    kinds: dict[str, Kind]
    shards: tuple[Shard, ...]
    table: bytes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return bytes of each object."""
        return tuple(shard.size for shard in self.shards)

    def holds_for(self, tensors: dict[str, torch.Tensor]) -> bool:
        return self.kinds == _kinds(tensors)


@dataclass(frozen=True, eq=False)
class Save:
    """A save that is about to be made; of several ranks that make it together, this one's share of it.

    draft    of other ranks than 0 without text and sizes
    plan     of the objects that are written here
    tensors  of which they are made; they share their memory with the state
    commit   what it is once it is committed
    first    the number of the plan's first object in the save
    new      whether the plan is another one than at the save before
    decided  what was decided beside, by rank 0
    """

    draft: Draft
    plan: Plan
    tensors: dict[str, torch.Tensor]
    commit: Commit
    first: int = 0
    new: bool = False
    decided: dict[str, Any] = field(default_factory=dict)


def documents(
    step: int, state: Tree, meta: dict[str, Any], *, sharded: bool = False, marks: Marks | None = None
) -> tuple[Document, dict[str, torch.Tensor], Document]:
    """Return the state's document and tensors, and the document of `meta`, as `tree.encode` makes them.

    Raises `UnsupportedValue`, and `CheckpointError` for a bad step or meta.
    """
    check_step(step)
    document, tensors = encode(state, sharded=sharded, marks=marks)
    meta_document, meta_tensors = encode(meta)
    if type(meta) is not dict or meta_tensors:
        raise CheckpointError(
            f"meta must be a dict of plain values, found tensors: {', '.join(meta_tensors) or meta!r}"
        )
    return document, tensors, meta_document


def check_step(step: Any) -> None:
    """Raise CheckpointError for what no checkpoint can be named by."""
    if type(step) is not int or not 0 <= step < STEP_MAX:
        raise CheckpointError(f"step {step!r} is not an int from 0 to {STEP_MAX:,}; nothing was saved")


class UnderClaim(Protocol):
    """What a commit says of the claim that it is made under (runs/claims.py)."""

    @property
    def number(self) -> int: ...
    @property
    def nonce(self) -> str: ...
    @property
    def resumed_from(self) -> CommitId | None: ...


class Planner:
    """Keeps the last plan, None before there is one."""

    def __init__(self, shard_bytes: int, per_rank: Patterns | None = None) -> None:
        """Take the rules of planning; per_rank: what a group of ranks would save of each, here of one."""
        self._shard_bytes = shard_bytes
        self._per_rank = per_rank
        self.plan: Plan | None = None

    def save(self, *, claim: UnderClaim, step: int, state: Tree, meta: dict[str, Any], now_s: float) -> Save:
        """Return what saving `state` under `claim` takes. Raises UnsupportedValue; CheckpointError for a bad step."""
        marks = Marks(self._per_rank, Patterns((), "rank0")) if self._per_rank else None
        document, tensors, meta_document = documents(step, state, meta, marks=marks)
        if marks is not None:
            marks.join([marks.own])
        plan = self._planned(tensors)
        id = CommitId(claim.number, step, new_nonce(now_s))
        draft = manifest.draft(
            id,
            claim_nonce=claim.nonce,
            saved_at=now_s,
            resumed_from=claim.resumed_from,
            meta=meta_document,
            tree=document,
            table=plan.table,
            sizes=plan.sizes,
            per_rank=marks is not None and bool(marks.own),
        )
        committed = Commit(*id, now_s, decode(meta_document, {}), len(plan.shards), sum(plan.sizes))
        return Save(draft, plan, tensors, committed)

    def _planned(self, tensors: dict[str, torch.Tensor]) -> Plan:
        if self.plan is None or not self.plan.holds_for(tensors):
            shards = tuple(plan_shards(tensors, self._shard_bytes))
            self.plan = Plan(_kinds(tensors), shards, manifest.table(tensors, shards))
        return self.plan


def _kinds(tensors: dict[str, torch.Tensor]) -> dict[str, Kind]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}

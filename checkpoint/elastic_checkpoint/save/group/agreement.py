"""What the ranks agree on before a save: the same step and state everywhere, its name, and who stores what.

    what each rank has  ->  rank 0: a name, under its claim; does the plan still hold?  ->  (if not: a new plan)

One round of messages as long as names, shapes, dtypes and placements stay as they were on all ranks, three where a plan
is made. Rank 0 holds the claim, and fixes the name before anything is written. That the ranks hold the same is part of
what they say (differences.py); rank 0's document of plain values is what is saved, with each rank's own ones in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format import manifest
from elastic_checkpoint.format.decoding import decode
from elastic_checkpoint.format.document import Document
from elastic_checkpoint.format.draft import Draft
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.marks import Marks, Patterns
from elastic_checkpoint.format.names import CommitId, id_document, id_from, new_nonce
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.rank_channel import RankChannel
from elastic_checkpoint.save.group.differences import BUFFERS, Log, Replica, buffers_differ, compare, differ
from elastic_checkpoint.save.group.layout import (
    GlobalLayout,
    Layout,
    LocalTensors,
    Signer,
    assign_boxes,
    kinds_of,
    layout,
    local_parts,
    whole,
)
from elastic_checkpoint.save.planner import Save, documents
from elastic_checkpoint.save.ranks import Decide, SaveRequest, Say


@dataclass(frozen=True)
class Sameness:
    """What may differ between the ranks, by the checkpointer's arguments; trusted: that no tensor does, unseen."""

    per_rank: Patterns
    rank0: Patterns
    trusted: bool

    def marks(self, rank: int) -> Marks:
        return Marks(self.per_rank, self.rank0, rank)


class Agreement:
    """Keeps the last plan.

    layout  this rank's share by it; None where there is none
    """

    def __init__(self, channel: RankChannel, shard_bytes: int, sameness: Sameness, log: Log) -> None:
        self.layout: Layout | None = None
        self._channel = channel
        self._shard_bytes = shard_bytes
        self._sameness = sameness
        self._log = log
        self._said_of_buffers = False  # that they differ; on rank 0
        self._signer = Signer()
        self._signatures: list[str] | None = None  # of all ranks, and
        self._whole: GlobalLayout | None = None  # the plan that they led to; both on rank 0
        self._proposed: list[str] | None = None

    def reach(self, asked: SaveRequest, say: Say, decide: Decide) -> Save | Message:
        """Agree on a save, as `SavingRanks.plan` says."""
        doing = f"the save of step {asked.step}"
        drafting = _Drafting(asked)
        tensors: dict[str, torch.Tensor] = {}
        marks = self._sameness.marks(self._channel.rank)
        replica: Replica | None = None
        mine: Message | BaseException
        try:
            drafting.tree, tensors, drafting.meta = documents(
                asked.step, asked.state, asked.meta, sharded=True, marks=marks
            )
            replica = Replica(drafting.tree, tensors, marks, ranks=self._channel.size, trusted=self._sameness.trusted)
            mine = {
                "call": f"step {asked.step}, {asked.how}",
                "signature": self._signer.sign(tensors, marks),
                "planned": self.layout is not None,
                "own": marks.own,
                "replica": replica.said() if self._channel.size > 1 else None,
            }
            mine["beside"] = say()
        except BaseException as error:  # whatever it is, the others must not wait for this rank
            mine = error
        drafting.marks = marks
        begun = self._channel.agree(f"{doing}: its state", mine, lambda said: self._begin(said, drafting, decide))
        if "differ" in begun:
            assert replica is not None
            self._compare(f"{doing}: where the ranks differ", replica)
            drafting.compared = True
            begun = self._channel.agree(f"{doing}: its state", mine, lambda said: self._begin(said, drafting, decide))
        decided: Message = begun["decided"]
        if "stop" in decided:
            return decided
        if begun["new"]:
            self._plan(f"{doing}: its plan", tensors, marks, drafting)
        layout = self.layout
        assert layout is not None
        id = id_from(begun["id"])
        assert id is not None
        committed = Commit(*id, begun["at"], decode(begun["meta"], {}), layout.objects, layout.bytes)
        draft = drafting.draft or Draft(id, "", (), b"", b"")
        parts = local_parts(layout, tensors)
        return Save(draft, layout.plan, parts, committed, layout.first, begun["new"], decided)

    def _begin(self, said: list[Message], drafting: _Drafting, decide: Decide) -> list[Message]:
        """Name the save, on rank 0, and see whether the plan still holds."""
        calls = [message["call"] for message in said]
        if len(set(calls)) > 1:
            found = ", ".join(f"rank {rank} {call}" for rank, call in enumerate(calls))
            raise CheckpointError(
                f"the ranks do not call the same: {found}\n"
                "  state  nothing was saved\n  next   call save with one step and one `blocking` on all ranks"
            )
        replicas = [message["replica"] for message in said]
        if len(said) > 1 and not drafting.compared:
            if differ(replicas):
                return [{"differ": True}] * self._channel.size
            if buffers_differ(replicas) and not self._said_of_buffers:
                self._said_of_buffers = True
                self._log(BUFFERS)
        drafting.join([message["own"] for message in said])
        proposed = [message["signature"] for message in said]
        new = self._signatures != proposed or not all(message["planned"] for message in said)
        if new:  # until the plan is made, none holds
            self._signatures, self._proposed = None, proposed
        drafting.begin()
        if not new and self._whole is not None:
            drafting.finish(self._whole)
        answer = {"id": id_document(drafting.id), "at": drafting.saved_at, "meta": drafting.meta, "new": new}
        answer["decided"] = decide([message["beside"] for message in said], drafting.draft)
        return [answer] * self._channel.size

    def _compare(self, what: str, replica: Replica) -> None:
        mine: Message | BaseException
        try:
            mine = replica.entries()
        except BaseException as error:
            mine = error

        def judge(said: list[Message]) -> list[Message]:
            compare(said)
            return [{}] * self._channel.size

        self._channel.agree(what, mine, judge)

    def _plan(self, what: str, tensors: dict[str, torch.Tensor], marks: Marks, drafting: _Drafting) -> None:
        """Make this rank's layout, or leaves it None where the plan cannot be made."""
        self.layout = None
        mine: Message | BaseException
        try:
            holding = LocalTensors(tensors, marks)
            mine = holding.described(self._channel.size, self._shard_bytes)
        except BaseException as error:
            mine = error

        def assign(said: list[Message]) -> list[Message]:
            parts = assign_boxes(said)
            self._whole = whole(parts, kinds_of(said, tensors), self._shard_bytes)
            drafting.finish(self._whole)
            firsts = [sum(self._whole.counts[:rank]) for rank in range(self._channel.size)]
            self._signatures = self._proposed
            total = {"objects": len(self._whole.sizes), "bytes": sum(self._whole.sizes)}
            return [{"boxes": boxes, "first": first, **total} for boxes, first in zip(parts, firsts, strict=True)]

        part = self._channel.agree(what, mine, assign)
        try:
            made, mine = layout(part, holding, tensors, self._shard_bytes), {}
        except BaseException as error:
            mine = error
        self._channel.agree(what, mine, lambda said: said)
        self.layout = made


class _Drafting:
    """What rank 0 knows of a save beyond the others.

    tree, meta  this rank's documents of the state and of `meta`
    marks       what was noted of the tree
    compared    whether the ranks are known to differ in nothing but an order
    draft       once the plan is known
    """

    def __init__(self, asked: SaveRequest) -> None:
        self._step, self._context = asked.step, asked.context
        self.tree: Document = None
        self.meta: Document = None
        self.marks: Marks | None = None
        self.compared = False
        self.draft: Draft | None = None

    def join(self, owns: list[dict[str, Document]]) -> None:
        if self.marks is not None:
            self.marks.join(owns)

    def begin(self) -> None:
        self._under, self.saved_at = self._context.claim(), self._context.now_s()
        self.id = CommitId(self._under.number, self._step, new_nonce(self.saved_at))

    def finish(self, plan: GlobalLayout) -> None:
        self.draft = manifest.draft(
            self.id,
            claim_nonce=self._under.nonce,
            saved_at=self.saved_at,
            resumed_from=self._under.resumed_from,
            meta=self.meta,
            tree=self.tree,
            table=plan.table,
            sizes=plan.sizes,
            per_rank=self.marks is not None and bool(self.marks.own),
        )

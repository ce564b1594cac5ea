"""Saves a state that several ranks hold together, while all of them wait: each writes its part, rank 0 commits.

    same state everywhere?  ->  (new plan)  ->  every rank its objects  ->  counted by rank 0: look again, manifest

Rank 0 holds the claim, and fixes the name before anything is written. Its document of plain values is what is saved;
where ranks differ in them, rank 0 is right. A rank that fails or is lost at any arrow means no commit: every other one
raises, by a deadline, what is known of it, and the previous checkpoint stays the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from checkpoint import manifest
from checkpoint.claims import Claim
from checkpoint.decoding import decode
from checkpoint.distributed_plan import Holding, Layout, Whole, dealt, layout, signature, whole
from checkpoint.draft import Draft, StoredObject
from checkpoint.errors import CheckpointError
from checkpoint.foreground import write_all
from checkpoint.manifest import Commit
from checkpoint.names import CommitId, id_document, id_from, new_nonce
from checkpoint.plan import documents
from checkpoint.storage import Storage
from checkpoint.tree import Document, Tree
from checkpoint.world import Message, World
from checkpoint.writer import commit


class Saver:
    """Keeps the last plan: it holds while names, shapes, dtypes and placements stay the same on all ranks."""

    def __init__(self, world: World, storage: Storage, shard_bytes: int) -> None:
        self._world = world
        self._storage = storage
        self._shard_bytes = shard_bytes
        self._layout: Layout | None = None
        self._signatures: list[str] | None = None  # of all ranks, and
        self._whole: Whole | None = None  # the plan that they led to; both on rank 0
        self._proposed: list[str] | None = None

    def save(
        self,
        step: int,
        state: Tree,
        meta: dict[str, Any],
        *,
        claim: Callable[[], Claim],
        now_s: Callable[[], float],
    ) -> Commit:
        """The commit, durable, on every rank. Collective.

        claim, now_s  are called on rank 0
        raises        the same on all ranks: UnsupportedValue, ClaimHeld, ClaimLost, StorageError, or CheckpointError
                      naming the ranks that are silent; nothing is committed then
        """
        doing = f"the save of step {step}"
        drafting = _Drafting(step, claim, now_s)
        document: Document = None
        tensors: dict[str, torch.Tensor] = {}
        mine: Message | Exception
        try:
            document, tensors, meta_document = documents(step, state, meta, sharded=True)
            mine = {"step": step, "signature": signature(tensors), "planned": self._layout is not None}
        except Exception as error:  # whatever it is, the others must not wait for this rank
            mine = error
        begun = self._world.agree(f"{doing}: its state", mine, lambda said: self._begin(said, drafting))
        part = self._plan(f"{doing}: its plan", tensors) if begun["new"] else None

        id = id_from(begun["id"])
        assert id is not None
        try:
            if part is not None:
                self._layout = part()
            objects = self._write(id, tensors)
            mine = {"objects": [vars(stored) for stored in objects]}
        except Exception as error:
            mine = error

        def finish(said: list[Message]) -> list[Message]:
            assert self._whole is not None
            draft = drafting.draft(document, meta_document, self._whole)
            commit(self._storage, draft, [_stored(entry) for message in said for entry in message["objects"]])
            end = {
                "at": drafting.saved_at,
                "meta": meta_document,
                "objects": len(draft.sizes),
                "bytes": sum(draft.sizes),
            }
            return [end] * self._world.size

        end = self._world.agree(f"{doing}: its objects", mine, finish, last=True)
        return Commit(*id, end["at"], decode(end["meta"], {}), end["objects"], end["bytes"])

    def _begin(self, said: list[Message], drafting: _Drafting) -> list[Message]:
        """On rank 0."""
        steps = {message["step"] for message in said}
        if len(steps) > 1:
            raise CheckpointError(
                f"the ranks save different steps: {sorted(steps)}\n"
                "  state  nothing was saved\n  next   call save with one step on all ranks"
            )
        proposed = [message["signature"] for message in said]
        new = self._signatures != proposed or not all(message["planned"] for message in said)
        if new:  # until the plan is made, none holds
            self._signatures, self._proposed = None, proposed
        drafting.begin()
        return [{"id": id_document(drafting.id), "new": new}] * self._world.size

    def _plan(self, what: str, tensors: dict[str, torch.Tensor]) -> Callable[[], Layout]:
        """What makes this rank's layout; that may fail, and then the others have to hear of it."""
        self._layout = None
        mine: Message | Exception
        try:
            holding = Holding(tensors)
            mine = holding.described(self._world.size, self._shard_bytes)
        except Exception as error:
            mine = error

        def deal(said: list[Message]) -> list[Message]:
            parts = dealt(said)
            self._whole = whole(parts, tensors, self._shard_bytes)
            firsts = [sum(self._whole.counts[:rank]) for rank in range(self._world.size)]
            self._signatures = self._proposed
            return [{"boxes": boxes, "first": first} for boxes, first in zip(parts, firsts, strict=True)]

        part = self._world.agree(what, mine, deal)
        return lambda: layout(part["boxes"], part["first"], holding, tensors, self._shard_bytes)

    def _write(self, id: CommitId, tensors: dict[str, torch.Tensor]) -> list[StoredObject]:
        assert self._layout is not None
        local, _ = Holding(tensors).local(self._layout.boxes)
        return write_all(self._storage, id, self._layout.plan, local, first=self._layout.first)


class _Drafting:
    """What rank 0 knows of a save beyond the others."""

    def __init__(self, step: int, claim: Callable[[], Claim], now_s: Callable[[], float]) -> None:
        self._step, self._claim, self._now_s = step, claim, now_s

    def begin(self) -> None:
        self._under, self.saved_at = self._claim(), self._now_s()
        self.id = CommitId(self._under.number, self._step, new_nonce(self.saved_at))

    def draft(self, document: Document, meta: Document, plan: Whole) -> Draft:
        return manifest.draft(
            self.id,
            claim_nonce=self._under.nonce,
            saved_at=self.saved_at,
            resumed_from=self._under.resumed_from,
            meta=meta,
            tree=document,
            table=plan.table,
            sizes=plan.sizes,
        )


def _stored(entry: Message) -> StoredObject:
    return StoredObject(entry["size"], entry["xxh3"], entry["chunk_bytes"], tuple(entry["chunks"]))

"""Who saves: one process by itself, or the ranks of a group together. The pipeline is the same for both.

What the ranks do together is collective: all call it, in the same order, and all get the same answer or error.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.draft import Draft, StoredObject
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.tensors import pack
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.errors import Scrub
from elastic_checkpoint.runs.claim_record import Claim
from elastic_checkpoint.save.commit import commit, write_object
from elastic_checkpoint.save.planner import Plan, Planner, Save, check_step
from elastic_checkpoint.storage import Storage

Say = Callable[[], Message]
Decide = Callable[[list[Message], Draft | None], Message]


@dataclass(frozen=True)
class Context:
    """What a save needs of the checkpointer.

    claim, now_s  are called on rank 0
    committed     is called there after the commit, before a save in the background counts as done; must not block
    protecting    while its block lasts no sweep takes the save for the remains of one that failed
    """

    claim: Callable[[], Claim]
    now_s: Callable[[], float]
    committed: Callable[[Draft], None]
    protecting: Callable[[CommitId], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class SaveRequest:
    """A save that was asked for; how: with which call, for people, and the same on all ranks."""

    step: int
    state: Tree
    meta: dict[str, Any]
    context: Context
    how: str


class SavingRanks(Protocol):
    """Those who save together, as the pipeline sees them from one rank.

    planned  this rank's last plan; None where there is none
    scrub    takes the storage's secrets out of a text; None where they are not known
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def scrub(self) -> Scrub | None: ...
    @property
    def planned(self) -> Plan | None: ...

    def plan(self, asked: SaveRequest, say: Say, decide: Decide) -> Save | Message:
        """Return the save to be made; or the answer of `decide`, where that has "stop" in it. Collective.

        say     makes what this rank says beside its state
        decide  called on rank 0 with what all said, and the draft if the plan still holds; its answer is for all
        raises  UnsupportedValue, RanksDiffer, ClaimHeld, StorageError, what `decide` raises, or CheckpointError naming
                the ranks that are silent or gone
        """

    def first_reason(self, what: str, mine: str | BaseException | None) -> str | None:
        """Return the first rank's reason, where any has one. Collective. Raises what any rank failed of."""

    def write(self, storage: Storage, save: Save) -> None:
        """Commit the save, and return when it is durable. Collective.

        Raises ClaimLost, StorageError and others, with nothing committed.
        """

    def reporting_errors(self) -> contextlib.AbstractContextManager[None]:
        """Let the others learn of what is raised inside, without their knowing."""


class OneRank:
    """This process by itself: nobody is to be asked."""

    rank, size, scrub = 0, 1, None

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    @property
    def planned(self) -> Plan | None:
        return self._planner.plan

    def plan(self, asked: SaveRequest, say: Say, decide: Decide) -> Save | Message:
        check_step(asked.step)
        claim, now_s = asked.context.claim(), asked.context.now_s()
        save = self._planner.save(claim=claim, step=asked.step, state=asked.state, meta=asked.meta, now_s=now_s)
        answer = decide([say()], save.draft)
        return answer if "stop" in answer else replace(save, decided=answer)

    def first_reason(self, what: str, mine: str | BaseException | None) -> str | None:
        if isinstance(mine, BaseException):
            raise mine
        return mine

    def write(self, storage: Storage, save: Save) -> None:
        save_now(storage, save)

    def reporting_errors(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def save_now(storage: Storage, save: Save) -> Commit:
    """Commit the save, and return when it is durable.

    memory  one shard beside the state; nothing else is copied, on whatever device it lies
    raises  ClaimLost, StorageError with nothing committed
    """
    commit(storage, save.draft, write_all(storage, save.draft.id, save.plan, save.tensors))
    return save.commit


def write_all(
    storage: Storage, id: CommitId, plan: Plan, tensors: Mapping[str, torch.Tensor], *, first: int = 0
) -> list[StoredObject]:
    """Write the plan's objects, and commit nothing. Raises StorageError.

    first  the number of the plan's first object in the save
    """
    buffer = mmap.mmap(-1, max(plan.sizes, default=1))  # begins at a page, so local files need no second copy
    return [
        write_object(storage, id, first + index, pack(shard, tensors, buffer))
        for index, shard in enumerate(plan.shards)
    ]

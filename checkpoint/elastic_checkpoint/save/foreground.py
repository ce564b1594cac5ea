"""Saves while training waits: one object after another, through one buffer that stays warm."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch

from elastic_checkpoint.format.draft import StoredObject
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.tensors import pack
from elastic_checkpoint.save.commit import commit, write_object
from elastic_checkpoint.save.planner import Plan, Save
from elastic_checkpoint.storage import Storage


def save_now(storage: Storage, save: Save) -> Commit:
    """Commits the save, and returns when it is durable.

    memory  one shard beside the state; nothing else is copied, on whatever device it lies
    raises  ClaimLost, StorageError with nothing committed
    """
    commit(storage, save.draft, write_all(storage, save.draft.id, save.plan, save.tensors))
    return save.commit


def write_all(
    storage: Storage, id: CommitId, plan: Plan, tensors: Mapping[str, torch.Tensor], *, first: int = 0
) -> list[StoredObject]:
    """Writes the plan's objects, and commits nothing. Raises StorageError.

    first  the number of the plan's first object in the save
    """
    buffer = mmap.mmap(-1, max(plan.sizes, default=1))  # begins at a page, so local files need no second copy
    return [
        write_object(storage, id, first + index, pack(shard, tensors, buffer))
        for index, shard in enumerate(plan.shards)
    ]

"""Saves while training waits: one object after another, through one buffer that stays warm."""

from __future__ import annotations

from checkpoint.manifest import Commit
from checkpoint.plan import Save
from checkpoint.shards import pack
from checkpoint.storage import Storage
from checkpoint.writer import commit, write_object


def save_now(storage: Storage, save: Save) -> Commit:
    """Commits the save, and returns when it is durable.

    memory  one shard beside the state; nothing else is copied, on whatever device it lies
    raises  ClaimLost, StorageError with nothing committed
    """
    buffer = bytearray(max(save.plan.sizes, default=0))
    objects = [
        write_object(storage, save.draft, index, pack(shard, save.tensors, buffer))
        for index, shard in enumerate(save.plan.shards)
    ]
    commit(storage, save.draft, objects)
    return save.commit

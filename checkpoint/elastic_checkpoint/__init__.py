"""Durable checkpoints of any state, verified on load, safe against whoever the run has moved on from.

    with Checkpointer("s3://bucket/runs/lm7") as checkpoints:
        checkpoints.save(1200, {"model": model, "optimizer": optimizer, "epoch": 3})
        step = checkpoints.load({"model": model, "optimizer": optimizer})

Training need not wait: with blocking=False a save takes about as long as one copy of the state in memory, and a process
of its own does the rest, even if this one is killed a moment later.

        checkpoints.warm(state)                            # once, when the state has its full size
        saving = checkpoints.save(1200, state, blocking=False)
        ...                                                # train on; the state may change
        saving.wait()                                      # the commit, or what failed

Works without torch.distributed. With group="auto" all of its ranks save and load together, replicated (DDP) state and
DTensors (FSDP2) alike, and what was saved at one number of ranks loads at any other:

        checkpoints = Checkpointer("s3://bucket/runs/lm7", group="auto")    # on every rank

What is no DTensor is one value for all ranks, and is compared, bit by bit, before it is saved. What is meant to differ
is named: per_rank=["rng", "loader"] keeps each rank's own.

Nothing is pickled or unpickled.

checkpointer  `Checkpointer`; by one process: local; by several ranks: distributed
format        what lies in storage
storage       folders, S3, fsspec
runs          who may write, what is newest
save          from a state to a commit; load: back, verified, or not at all
net           how ranks reach each other
cli           the command; command_line: how all commands refuse an argument
testing       storage that fails as planned

errors        what can go wrong; arguments: what is wrong with one
linux         processes, signals and mounts, as Linux has them
memory        how much there is, and files that are mapped; forks: what a forked child must not keep
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_checkpoint.checkpointer import Checkpointer
    from elastic_checkpoint.errors import (
        CheckpointError,
        ClaimHeld,
        ClaimLost,
        CorruptCheckpoint,
        NoCheckpoint,
        RanksDiffer,
        RunMovedOn,
        SaveDropped,
        StateChanged,
        StateMismatch,
        StorageError,
        UnsupportedValue,
        WriterDied,
    )
    from elastic_checkpoint.format.decoding import decode
    from elastic_checkpoint.format.hashing import digest
    from elastic_checkpoint.format.manifest import Commit
    from elastic_checkpoint.format.marks import PerRank
    from elastic_checkpoint.format.tree import encode
    from elastic_checkpoint.load.integrity import Verified
    from elastic_checkpoint.load.loaded import Loaded
    from elastic_checkpoint.load.reader import Checkpoint
    from elastic_checkpoint.runs.claim_record import Claim
    from elastic_checkpoint.save.handle import Saving
    from elastic_checkpoint.storage.base import Storage

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "Claim",
    "ClaimHeld",
    "ClaimLost",
    "Commit",
    "CorruptCheckpoint",
    "Loaded",
    "NoCheckpoint",
    "PerRank",
    "RanksDiffer",
    "RunMovedOn",
    "SaveDropped",
    "Saving",
    "StateChanged",
    "StateMismatch",
    "Storage",
    "StorageError",
    "UnsupportedValue",
    "Verified",
    "WriterDied",
    "decode",
    "digest",
    "encode",
]

# Where a name lives, if not in errors. Imported when it is asked for: the writer process is part of this package too,
# and torch would take 2 s and 200 MB of it.
_HOMES = {
    "Checkpoint": "load.reader",
    "Checkpointer": "checkpointer",
    "Claim": "runs.claims",
    "Commit": "format.manifest",
    "Loaded": "load.loaded",
    "PerRank": "format.marks",
    "Saving": "save.handle",
    "Storage": "storage.base",
    "Verified": "load.verify",
    "decode": "format.decoding",
    "digest": "format.hashing",
    "encode": "format.tree",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'elastic_checkpoint' has no attribute {name!r}")
        found = getattr(importlib.import_module(f"elastic_checkpoint.{_HOMES.get(name, 'errors')}"), name)
        globals()[name] = found
        return found

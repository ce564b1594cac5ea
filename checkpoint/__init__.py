"""Durable checkpoints of any state, verified on load, safe against whoever the run has moved on from.

    with Checkpointer("s3://bucket/runs/lm7") as checkpoints:
        checkpoints.save(1200, {"model": model, "optimizer": optimizer, "epoch": 3})
        step = checkpoints.load({"model": model, "optimizer": optimizer})

Works without torch.distributed. Nothing is pickled or unpickled.
"""

from checkpoint.checkpointer import Checkpointer
from checkpoint.claims import Claim
from checkpoint.decoding import decode
from checkpoint.errors import (
    CheckpointError,
    ClaimHeld,
    ClaimLost,
    CorruptCheckpoint,
    NoCheckpoint,
    StateMismatch,
    StorageError,
    UnsupportedValue,
)
from checkpoint.hashing import digest
from checkpoint.manifest import Commit
from checkpoint.reader import Checkpoint, Verified
from checkpoint.tree import encode

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "Claim",
    "ClaimHeld",
    "ClaimLost",
    "Commit",
    "CorruptCheckpoint",
    "NoCheckpoint",
    "StateMismatch",
    "StorageError",
    "UnsupportedValue",
    "Verified",
    "decode",
    "digest",
    "encode",
]

"""Whether commits are as they were written, to the byte. Makes no tensors, and needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint, StorageError
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.load.objects import read_object
from elastic_checkpoint.runs.history import History, read_manifest
from elastic_checkpoint.storage import Storage


@dataclass(frozen=True)
class Verified:
    """What verifying one commit found. `problems` is empty where every byte is as it was written."""

    name: str
    step: int
    in_lineage: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(storage: Storage, history: History, *, step: int | None = None) -> list[Verified]:
    """Verifies every commit (or those of `step`), newest first, those outside the lineage last."""
    return [verify_commit(storage, id, inside) for id, inside in history.commits if step is None or id.step == step]


def verify_commit(storage: Storage, id: CommitId, in_lineage: bool) -> Verified:
    """Reads every byte of the commit, going on after a damaged object, so that all of them are named."""
    problems = []
    try:
        manifest = read_manifest(storage, id)
    except StorageError:
        raise
    except CheckpointError as error:
        return Verified(str(id), id.step, in_lineage, (str(error),))
    for index in range(len(manifest.objects)):
        try:
            read_object(storage, manifest, index)
        except CorruptCheckpoint as error:
            problems.append(str(error))
    return Verified(str(id), id.step, in_lineage, tuple(problems))

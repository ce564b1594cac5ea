"""What faults of the newest checkpoint have in common: the run is to go on from the one before it."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Aftermath, Scene, WorkerFault

if TYPE_CHECKING:
    from elastic.drill.folder import DrillFolder
    from elastic_checkpoint.format.names import CommitId

_SPOILT = "spoilt"
_COMMITS_MIN = 2


@dataclass(frozen=True)
class SpoiltCheckpoint(WorkerFault):
    """The newest checkpoint is spoilt where it lies, by whoever has this rank at that moment. The fault waits until
    there are two checkpoints; it matters once the run goes back to one. Local folders only."""

    in_folder = True
    for_command = True
    record_first = False

    @abstractmethod
    def spoil(self, data: Path) -> None:
        """That checkpoint's first object."""

    def possible(self, scene: Scene) -> bool:
        return scene.storage is not None and self.may_spoil(scene.storage)

    @staticmethod
    def may_spoil(storage: Path) -> bool:
        """Whether there is one to go back to, and that one can be written."""
        commits = _commits(storage)
        if len(commits) < _COMMITS_MIN or not os.access(storage, os.W_OK):
            return False
        return bool(_objects(storage, commits[-1]))

    def strike(self, scene: Scene) -> None:
        assert scene.storage is not None
        newest = _commits(scene.storage)[-1]
        self.spoil(min(_objects(scene.storage, newest)))
        with (scene.drill.path / _SPOILT).open("a") as file:
            file.write(f"{newest}\n")

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS

    @classmethod
    def spoilt(cls, drill: DrillFolder) -> set[str]:
        try:
            return set((drill.path / _SPOILT).read_text().split())
        except FileNotFoundError:
            return set()


def _commits(storage: Path) -> list[CommitId]:
    """Of what is committed there, in order."""
    from elastic_checkpoint.format.names import COMMITS, commit_id

    found = (commit_id(f"{COMMITS}/{path.name}") for path in (storage / COMMITS).glob("*"))
    return sorted(id for id in found if id is not None)


def _objects(storage: Path, id: CommitId) -> list[Path]:
    return [*(storage / id.data_folder).glob("*.safetensors")]

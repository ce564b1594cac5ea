"""A damaged checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Aftermath, Flag, Scene, WorkerFault

if TYPE_CHECKING:
    from elastic.drill.folder import DrillFolder
    from elastic_checkpoint.format.names import CommitId

_FLIPPED = "flipped"


@dataclass(frozen=True)
class Flip(WorkerFault):
    """A bit of the newest checkpoint is changed where it lies, by whoever has this rank at that moment. The fault waits
    until there are two checkpoints; it matters once the run goes back to one. Local folders only."""

    kind = "flip"
    short = "flip a byte of the newest checkpoint, by w{worker}"
    sentence = "a byte of the newest checkpoint is changed"
    flags = (
        Flag(
            "flip-bytes",
            "a byte of the newest checkpoint is changed: it matters where --lose-all follows",
            of_worker=False,
        ),
    )
    in_folder = True
    for_command = True
    record_first = False

    def possible(self, storage: Path | None) -> bool:
        return storage is not None and len(_commits(storage)) > 1 and os.access(storage, os.W_OK)

    def strike(self, scene: Scene) -> None:
        """One bit in the middle of the newest checkpoint's first object."""
        assert scene.storage is not None
        newest = _commits(scene.storage)[-1]
        data = min((scene.storage / newest.data_folder).iterdir())
        with data.open("r+b") as file:
            file.seek(data.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        with (scene.drill.path / _FLIPPED).open("a") as file:
            file.write(f"{newest}\n")

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS

    @classmethod
    def spoilt(cls, drill: DrillFolder) -> set[str]:
        try:
            return set((drill.path / _FLIPPED).read_text().split())
        except FileNotFoundError:
            return set()


def _commits(storage: Path) -> list[CommitId]:
    """Of what is committed there, in order."""
    from elastic_checkpoint.format.names import COMMITS, commit_id

    found = (commit_id(f"{COMMITS}/{path.name}") for path in (storage / COMMITS).glob("*"))
    return sorted(id for id in found if id is not None)

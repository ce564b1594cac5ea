"""What goes wrong with the run's folder: the newest checkpoint is spoilt, or the disk cannot be written for a while.

What an object store suffers is no fault of a plan, but a chance of each operation: inject/bad_storage.py.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Aftermath, Fault, Flag, WorkerFault
from elastic.drill.faults.scene import RunningDrill, Scene

if TYPE_CHECKING:
    from elastic.drill.folder import DrillFolder
    from elastic.events.event import Event
    from elastic_checkpoint.format.names import CommitId

_SPOILT = "spoilt"
_COMMITS_MIN = 2


@dataclass(frozen=True)
class SpoiltCheckpoint(WorkerFault):
    """The newest checkpoint is spoilt where it lies, by whoever has this rank at that moment. Local folders only.

    The fault waits until there are two checkpoints; it matters once the run goes back to one.
    """

    in_folder = True
    for_command = True
    record_first = False
    outcome = Aftermath.NO_LOSS

    @abstractmethod
    def spoil(self, data: Path) -> None:
        """Spoil the newest checkpoint's first object, which is this file."""

    def possible(self, scene: Scene) -> bool:
        return scene.storage is not None and self.may_spoil(scene.storage)

    @staticmethod
    def may_spoil(storage: Path) -> bool:
        """Return whether there is an older checkpoint to go back to, and the newest one can be written to."""
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

    @classmethod
    def spoilt(cls, drill: DrillFolder) -> set[str]:
        try:
            return set((drill.path / _SPOILT).read_text().split())
        except FileNotFoundError:
            return set()


@dataclass(frozen=True)
class Flip(SpoiltCheckpoint):
    """A bit of the newest checkpoint is changed, in the middle of its first object. See SpoiltCheckpoint."""

    kind = "flip"
    sentence = "a byte of the newest checkpoint is changed"
    flags = (
        Flag("flip-bytes", "a byte of the newest checkpoint is changed: it matters where --lose-all follows",
             of_worker=False),
    )  # fmt: skip

    def spoil(self, data: Path) -> None:
        with data.open("r+b") as file:
            file.seek(data.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))


@dataclass(frozen=True)
class LoseCheckpoint(SpoiltCheckpoint):
    """The first object that the newest checkpoint's commit names is gone. See SpoiltCheckpoint."""

    kind = "lose_checkpoint"
    sentence = "an object of the newest checkpoint is gone"
    flags = (
        Flag("lose-checkpoint", "an object of the newest checkpoint is gone: it matters where --lose-all follows",
             of_worker=False),
    )  # fmt: skip

    def spoil(self, data: Path) -> None:
        data.unlink()


def _commits(storage: Path) -> list[CommitId]:
    """Return the checkpoints that are committed there, in order: the newest is the last."""
    from elastic_checkpoint.format.names import COMMITS, commit_id

    found = (commit_id(f"{COMMITS}/{path.name}") for path in (storage / COMMITS).glob("*"))
    return sorted(id for id in found if id is not None)


def _objects(storage: Path, id: CommitId) -> list[Path]:
    return [*(storage / id.data_folder).glob("*.safetensors")]


@dataclass(frozen=True)
class Disk(WorkerFault):
    """The disk that holds the run is full, or read-only, from that moment on and for `seconds`.

    It is a small one, which `elastic drill` makes for the run.

    how  "full" or "read_only"
    """

    how: str
    seconds: float = 1.0

    kind = "disk"
    sentence = "the disk is {said} for {seconds:g} s"
    flags = (
        Flag("disk-full", "the run's disk is full for a second; @…,seconds=S for longer. Root only", {"how": "full"},
             "full", of_worker=False),
        Flag("read-only", "the run's disk is read-only for a second; @…,seconds=S for longer. Root only",
             {"how": "read_only"}, "read-only", of_worker=False),
    )  # fmt: skip
    facts = ("seconds",)
    in_folder = True
    for_command = True
    on_hosts = False
    record_first = False
    outcome = Aftermath.NO_LOSS

    @classmethod
    def check_machine(cls) -> None:
        from elastic.drill.machine import disk

        disk.check()

    @classmethod
    def prepare(cls, storage: Path, *, like: Path) -> None:
        from elastic.drill.machine import disk

        disk.mount(storage, like=like)

    def possible(self, scene: Scene) -> bool:
        return scene.storage is not None and scene.storage.is_mount()

    def strike(self, scene: Scene) -> None:
        from elastic.drill.machine import disk

        assert scene.storage is not None
        disk.strike(scene.storage, self.how)

    def lasts_s(self, grace_s: float) -> float:
        return self.seconds

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        from elastic.drill.machine import disk

        if not any(isinstance(other, Disk) for other in others):
            disk.heal(run.storage)

    @classmethod
    def clear_away(cls, storage: Path, *, keep: bool) -> None:
        from elastic.drill.machine import disk

        disk.take_away(storage, keep=keep)

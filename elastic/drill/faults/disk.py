"""A disk that cannot be written for a while. It is a small one, made for the run (machine/disk.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Aftermath, Fault, Flag, RunningDrill, Scene, WorkerFault
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.events.event import Event

_STATES = ("full", "read_only")


@dataclass(frozen=True)
class Disk(WorkerFault):
    """The disk that holds the run is full, or read-only, from that moment on and for `seconds`. Where there is such a
    disk: `elastic drill` makes one.

    how  "full" or "read_only"
    """

    how: str
    seconds: float = 1.0

    kind = "disk"
    flags = (
        Flag(
            "disk-full",
            "the run's disk is full for a second; @…,seconds=S for longer. Root only",
            {"how": "full"},
            of_worker=False,
        ),
        Flag(
            "read-only",
            "the run's disk is read-only for a second; @…,seconds=S for longer. Root only",
            {"how": "read_only"},
            of_worker=False,
        ),
    )
    facts = ("seconds",)
    in_folder = True
    for_command = True
    on_hosts = False
    record_first = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in _STATES:
            raise ConfigError(f"Disk: how={self.how!r}; a disk is {' or '.join(_STATES)}")

    @classmethod
    def check_machine(cls) -> None:
        from elastic.drill.machine import disk

        disk.check()

    def __str__(self) -> str:
        return f"{self.when}: the disk is {self.how.replace('_', ' ')} for {self.seconds} s, by w{self.worker}"

    def in_words(self) -> str:
        return f"the disk is {self.how.replace('_', '-')} for {self.seconds:g} s"

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

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS

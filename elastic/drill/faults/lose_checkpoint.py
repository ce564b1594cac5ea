"""A checkpoint that is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic.drill.faults.base import Flag
from elastic.drill.faults.spoilt_checkpoint import SpoiltCheckpoint


@dataclass(frozen=True)
class LoseCheckpoint(SpoiltCheckpoint):
    """What the newest checkpoint's commit names is gone, its first object. See SpoiltCheckpoint."""

    kind = "lose_checkpoint"
    short = "delete an object of the newest checkpoint, by w{worker}"
    sentence = "an object of the newest checkpoint is gone"
    flags = (
        Flag(
            "lose-checkpoint",
            "an object of the newest checkpoint is gone: it matters where --lose-all follows",
            of_worker=False,
        ),
    )

    def spoil(self, data: Path) -> None:
        data.unlink()

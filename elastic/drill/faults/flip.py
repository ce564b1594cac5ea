"""A damaged checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from elastic.drill.faults.base import Flag
from elastic.drill.faults.spoilt_checkpoint import SpoiltCheckpoint


@dataclass(frozen=True)
class Flip(SpoiltCheckpoint):
    """A bit of the newest checkpoint is changed, in the middle of its first object. See SpoiltCheckpoint."""

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

    def spoil(self, data: Path) -> None:
        with data.open("r+b") as file:
            file.seek(data.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

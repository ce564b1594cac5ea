"""Files of lines, for streams."""

from __future__ import annotations

import os
import random
from pathlib import Path


def write_lines(folder: Path) -> None:
    """Eight files of unlike lengths: of six streams, some end within a run and some do not. Of several workers that
    write them at once, each writes the same."""
    draw = random.Random(5)
    for number in range(8):
        rows = [" ".join(f"{draw.gauss(0, 1):.3f}" for _ in range(4)) for _ in range(5 + 9 * number)]
        written = folder / f".lines-{number}-{os.getpid()}"
        written.write_text("\n".join(rows) + "\n" * (number % 2))
        written.rename(folder / f"lines-{number}.txt")

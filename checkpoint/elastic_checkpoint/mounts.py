"""What is mounted where, as Linux's /proc/self/mountinfo has it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """device  "major:minor"   folder  where it is   kind  of filesystem   source  what is mounted, by its own name"""

    device: str
    folder: str
    kind: str
    source: str


def mounts() -> list[Mount]:
    """All that this process sees. Raises OSError where there is no /proc."""
    found = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines():
        before, _, after = line.partition(" - ")
        _, _, device, _, folder, *_ = before.split()
        kind, source, *_ = after.split()
        found.append(Mount(device, re.sub(r"\\([0-7]{3})", _character, folder), kind, source))
    return found


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))

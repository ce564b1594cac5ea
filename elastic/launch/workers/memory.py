"""What the kernel says of this node's memory: counts of what its out-of-memory killer took. Linux: reads /proc.

cgroup v2  memory.events     of this process's group, where its workers are, too
cgroup v1  memory.oom_control
else       /proc/vmstat      of the whole machine
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic_checkpoint.memory import control_groups

_KEY = "oom_kill"


@dataclass(frozen=True)
class OomKills:
    """How many processes the killer took; count: since the machine or the group began."""

    where: str
    count: int


def oom_kills(root: Path = Path("/")) -> OomKills | None:
    """Return what the kernel says, None where it says nothing; root: of the filesystem, for tests."""
    for file, where in _counters(root):
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == _KEY:
                    return OomKills(where, int(value))
    return None


def sentence(before: OomKills | None, after: OomKills | None, peak_bytes: int | None) -> str | None:
    """Return in words what became of a worker's memory, from its start to its death."""
    words = []
    if after is not None:
        killed = after.count - before.count if before is not None and before.where == after.where else 0
        words.append(f"its out-of-memory killer took {killed or 'nothing'} {after.where} while that worker lived")
    if peak_bytes:
        words.append(f"the worker had used {peak_bytes / 2**20:,.0f} MiB at most")
    return "; ".join(words) or None


def struck(before: OomKills | None, after: OomKills | None) -> bool:
    """Return whether the out-of-memory killer took something in between."""
    return before is not None and after is not None and before.where == after.where and after.count > before.count


def _counters(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files to look at, the nearest first, each with what it counts in words."""
    mounted = root / "sys/fs/cgroup"
    # In a container the path may be the host's, under which nothing is mounted: then the mount itself is the group.
    for number, controllers, path in control_groups(root):
        below = path.strip("/")
        if number == "0":
            yield from ((mounted / at / "memory.events", "in this control group") for at in (below, ""))
        elif "memory" in controllers.split(","):
            v1 = mounted / "memory"
            yield from ((v1 / at / "memory.oom_control", "in this control group") for at in (below, ""))
    yield root / "proc/vmstat", "on this machine"

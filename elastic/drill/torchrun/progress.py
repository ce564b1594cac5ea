"""What a script shows of its progress beside its steps: lines of output, saves in its folder, points of TensorBoard's.

    Watch    notes while the script runs which lines come, and when a file is saved
    points   what TensorBoard's files in its folder hold, once it has ended
    waits    (pure) how long each start took from the last sign before it to the first new one

What is new is known from the run without faults: a line that this one prints, too, and the run with faults had not yet,
numbers with decimals left out; a point of a higher step than any before.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DECIMALS = re.compile(r"[-+]?\d+[.:]\d[\d.:]*(?:e[-+]?\d+)?|\b(?:nan|inf)\b", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_EVENTS = "tfevents"  # in the name of TensorBoard's files
_TEXT = frozenset({".log", ".txt", ".csv", ".json", ".jsonl", ".yaml", ".yml", ".out", ".err"})
_SCAN_S = 0.2


@dataclass
class Watch:
    """What a run has shown so far.

    folder  its own
    lines   each whole line of output, and when it came
    saves   when a file came there, or was changed, that is neither text nor TensorBoard's
    """

    folder: Path
    lines: list[tuple[float, str]] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    _files: dict[str, tuple[int, int]] = field(default_factory=dict)
    _offsets: dict[Path, int] = field(default_factory=dict)
    _searched: dict[str, int] = field(default_factory=dict)  # a text -> no line before this one has it
    _scanned_s: float = 0.0

    def look(self, output: Path) -> None:
        """Note what has come since the last look. output: the file that takes it."""
        now = time.time()
        with output.open("rb") as file:
            file.seek(offset := self._offsets.get(output, 0))
            found = file.read()
        whole = found[: max(found.rfind(b"\n"), found.rfind(b"\r")) + 1]
        self._offsets[output] = offset + len(whole)
        self.lines += [(now, line) for line in whole.decode(errors="replace").splitlines() if line.strip()]
        if time.monotonic() - self._scanned_s > _SCAN_S:
            self._scanned_s = time.monotonic()
            files = dict(_files(self.folder))
            self.saves += [now] * bool(files.items() - self._files.items())
            self._files = files

    def says(self, text: str, since: int) -> bool:
        """Return whether a line has this text, from the line with this number on."""
        at = max(since, self._searched.get(text, 0))
        while at < len(self.lines) and text not in self.lines[at][1]:
            at += 1
        self._searched[text] = at
        return at < len(self.lines)


def line_keys(lines: Sequence[tuple[float, str]]) -> set[str]:
    """Return what a run with faults is to print as well."""
    return {_DECIMALS.sub("#", line) for _, line in lines}


def new_lines(lines: Sequence[tuple[float, str]], keys: Collection[str]) -> list[float]:
    """Return when a line came, the first time, that the run without faults has printed. keys: see line_keys."""
    seen, found = set[str](), []
    for t, line in lines:
        key = _DECIMALS.sub("#", line)
        if key in keys and key not in seen:
            seen.add(key)
            found.append(t)
    return found


@dataclass(frozen=True)
class Points:
    """What TensorBoard's files hold, as it reads them: counted by (name, step); new: when a step came beyond others."""

    counts: Counter[tuple[str, int]]
    new: Sequence[float]

    def beside(self, undisturbed: Points) -> str:
        """Return in words what differs from the run without faults."""
        twice = sum(count - 1 for count in self.counts.values())
        missing = len(undisturbed.counts.keys() - self.counts.keys())
        apart = [f"{twice} more than once"] * bool(twice) + [f"{missing} missing"] * bool(missing)
        return ", ".join([str(self.counts.total()), *apart])


def points(folder: Path) -> Points | None:
    """Return what TensorBoard's files below a folder hold; None: there are none, or there is no TensorBoard here."""
    folders = sorted({path.parent for path in folder.rglob(f"*{_EVENTS}*")})
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        return None
    found: list[tuple[float, str, int]] = []
    for one in folders:
        there: Any = EventAccumulator(str(one), size_guidance={"scalars": 0}).Reload()
        for name in there.Tags()["scalars"]:
            found += [(point.wall_time, name, point.step) for point in there.Scalars(name)]
    highest, new = -1, []
    for t, _, step in sorted(found):
        if step > highest:
            highest = step
            new.append(t)
    return Points(Counter((name, step) for _, name, step in found), new) if found else None


def waits(signs: Sequence[float], starts: Sequence[float]) -> list[float | None]:
    """Return for each start the seconds from the last sign before it to the first one after it; None: none came.

    signs, starts  when, in order
    """
    found: list[float | None] = []
    for start in starts:
        before = [t for t in signs if t < start]
        after = next((t for t in signs if t >= start), None)
        found.append(after - before[-1] if before and after is not None else None)
    return found


def only_in(folder: Path, undisturbed: Path) -> list[str]:
    """Return names of files as no file of the run without faults has them, whatever numbers stand in them."""
    known = {_DIGITS.sub("#", name) for name in _names(undisturbed)}
    return [name for name in _names(folder) if _DIGITS.sub("#", name) not in known]


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each file that may be a save, with its size and the time of its last change."""
    for root, _, names in os.walk(folder):
        for name in names:
            if _EVENTS in name or os.path.splitext(name)[1] in _TEXT:
                continue
            path = os.path.join(root, name)
            try:
                found = os.stat(path)
            except OSError:  # renamed meanwhile
                continue
            yield path, (found.st_size, found.st_mtime_ns)

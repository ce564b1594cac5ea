"""Reads a run's events while it writes them: each call gives what is new. Local folders only."""

from __future__ import annotations

import contextlib
from pathlib import Path

from elastic.events.event import Event
from elastic.events.reading import record_in


class Follow:
    """Reads the events under `folder` piece by piece, each as read_events has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "events"
        self._read: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """Return what has been written since the last call, by time; a line without an end waits for its end."""
        found: list[Event] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
                whole = data.rpartition(b"\n")[0]
                if not whole:
                    continue
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                found += [record for line in whole.splitlines() if (record := record_in(line)) is not None]
        return sorted(found, key=lambda event: float(event["t"]))

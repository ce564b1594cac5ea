"""What the pytest plugin loads once a test runs a drill: the ends of its runs, and what a failed test says of them.

pytest shortens what stands behind the comma of an assert; a verdict's evidence is what must not be shortened.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from elastic.drill.cluster import OUTPUT_SHOWN, Cluster
from elastic.drill.end import End
from elastic.drill.report.diagnosis import diagnose


class Remembering(Cluster):
    """A cluster that knows the end of its last launch that was waited for with `finish`."""

    end: End | None = None

    def finish(self, **how: Any) -> End:
        self.end = super().finish(**how)
        return self.end


class UndisturbedEnds:
    """The ends of undisturbed runs, each made once in a test session, also where pytest-xdist has several processes.

    folder: of the whole session, for all its processes, which alone can write to it; None: there is one process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, End] = {}

    def get(self, key: str, make: Callable[[], End]) -> End:
        """Return the end that `make` made for this key, here or in another process, which is waited for."""
        if key not in self._known:
            self._known[key] = make() if self._folder is None else self._shared(self._folder, key, make)
        return self._known[key]

    def _shared(self, folder: Path, key: str, make: Callable[[], End]) -> End:
        """Return the end that another process of the session has written; if none has, make it and write it."""
        path = folder / f"undisturbed-{hashlib.sha256(key.encode()).hexdigest()}"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it for a process that is killed
            if path.exists():
                end: End = pickle.loads(path.read_bytes())  # noqa: S301  written by a process of this session
                return end
            end = make()
            written = path.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps(end))
            written.rename(path)
            return end


def sections(runs: Sequence[Remembering], undisturbed: Sequence[End]) -> list[tuple[str, str]]:
    """Return a title and a text for each run that has ended: its verdict, and what else explains a failed test.

    undisturbed  the ends that the test compares with
    """
    baseline = [(end.config, end) for end in undisturbed]
    found: list[tuple[str, str]] = []
    for number, run in enumerate(runs, 1):
        if run.end is not None:
            reference = next((end for config, end in baseline if config == run.end.config), None)
            found.append((f"drill: run {number}", "\n".join(_of_run(run, run.end, reference))))
    return found


def _of_run(run: Remembering, end: End, reference: End | None) -> Iterable[str]:
    """Yield the text on one run, part after part. reference: the undisturbed end that it is compared with."""
    yield str(end.verdict)
    for fault in end.not_reached:
        yield f"did not happen: {fault}"
    for what in end.left_behind:
        yield f"left behind: {what}"
    if reference is not None:
        exact = end.config.get("mode") == "exact"
        yield from map(str, diagnose(reference.events, end.events, exact=exact))
    if end.exit_code or not end.events:
        yield f"its launch ended with status {end.exit_code}, and printed:\n{end.output[-OUTPUT_SHOWN:].rstrip()}"
    if end.events:
        yield f"elastic report {run.evidence} tells more"

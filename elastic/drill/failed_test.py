"""What a test that failed says of its drills: each run's verdict, whole, and where in the script the reason may be.

pytest shortens what stands behind the comma of an assert; a verdict's evidence is what must not be shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from elastic.drill.cluster import OUTPUT_SHOWN, Cluster
from elastic.drill.end import End
from elastic.drill.report.diagnosis import diagnose


class Remembering(Cluster):
    """A cluster that knows what became of it.

    end  of its last launch that was waited for with `finish`
    """

    end: End | None = None

    def finish(self, **how: Any) -> End:
        self.end = super().finish(**how)
        return self.end


def sections(runs: Sequence[Remembering], undisturbed: Sequence[End], script: Path) -> list[tuple[str, str]]:
    """Title and text of what is worth saying of each run.

    undisturbed  the ends that the test compares with
    """
    baseline = [(end.config, end) for end in undisturbed]
    found: list[tuple[str, str]] = []
    for number, run in enumerate(runs, 1):
        if run.end is not None:
            reference = next((end for config, end in baseline if config == run.end.config), None)
            found.append((f"drill: run {number}", "\n".join(_of_run(run, run.end, reference, script))))
    return found


def _of_run(run: Remembering, end: End, reference: End | None, script: Path) -> Iterable[str]:
    yield str(end.verdict)
    for fault in end.not_reached:
        yield f"did not happen: {fault}"
    for what in end.left_behind:
        yield f"left behind: {what}"
    if reference is not None:
        exact = end.config.get("mode") == "exact"
        yield from map(str, diagnose(reference.events, end.events, script=str(script), exact=exact))
    if end.exit_code or not end.events:
        yield f"its launch ended with status {end.exit_code}, and printed:\n{end.output[-OUTPUT_SHOWN:].rstrip()}"
    if end.events:
        yield f"elastic report {run.evidence} tells more"

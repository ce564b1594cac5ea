"""The table of a drill of a script for torchrun: the run without faults beside the one with faults, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from elastic.drill.torchrun.lineage import Lineage, Weights, lost_and_repeated
from elastic.drill.torchrun.progress import Points, Watch, line_keys, new_lines, waits
from elastic.events.words import seconds

_LIVE = "Run: the others go on, in their processes"
_VAIN = "Run: the current step; Preemption: none after a notice"
_DATA = "ElasticLoader or Run: none lost or repeated"
_BITS = "Run: the same bits"
_ONCE = "elastic.logging.TensorBoard: each step once"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of one run.

    starts     when its workers started again, all of them
    sizes      of the worlds that they formed
    first      the weights that it began with; None: no optimizer of torch's took a step
    points     TensorBoard's; None: it wrote none
    only_here  files in its folder as the run without faults has none
    """

    status: int
    steps: Lineage
    starts: Sequence[float]
    sizes: Sequence[int]
    first: Weights | None
    metrics: dict[str, str]
    watch: Watch
    points: Points | None
    left_behind: tuple[str, ...]
    only_here: Sequence[str]
    output: str


class DrillTable:
    """The table, and whether something in it is broken."""

    def __init__(self, baseline: Run, faulted: Run) -> None:
        self.broken = bool(faulted.status or faulted.left_behind)
        self.table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for name in ("", "without faults", "with faults", "what would change it"):
            self.table.add_column(name, overflow="fold")
        again = len(faulted.starts)
        often = "never started again" if not again else f"started again {again} time{'s' * (again > 1)}"
        self._row("comes to its end", "yes", f"{'no' if faulted.status else 'yes'}, {often}", _LIVE)
        self._row("workers", _arrows(baseline.sizes), _arrows(faulted.sizes))
        self._steps(baseline, faulted)
        self._progress(baseline, faulted)
        self._examples(baseline, faulted)
        for name in baseline.metrics:
            is_same = faulted.metrics.get(name) == baseline.metrics[name]
            found = faulted.metrics.get(name, "none")
            self._row(f"{name}, at the end", baseline.metrics[name], found, "" if is_same else _BITS)
        self._row("left behind", _listed(baseline.left_behind), _listed(faulted.left_behind))
        if faulted.only_here:
            self._row("files with faults alone", "", _listed(faulted.only_here))

    def _row(self, name: str, *cells: str) -> None:
        self.table.add_row(name, *cells)

    def _steps(self, baseline: Run, faulted: Run) -> None:
        steps = faulted.steps
        if baseline.first is None:
            self._row("steps", "not known: no optimizer of torch's took one")
            return
        self._row("steps in the result", str(len(baseline.steps.steps)), str(len(steps.steps)))
        self._row("steps done once more", "0", str(sum(one.redone for one in steps.restarts)), _VAIN)
        self._row("until the next step", "", _times([one.after_s for one in steps.restarts]), "Run: about 0.1 s")
        self._row("until a new one", "", _times([one.beyond_s for one in steps.restarts]), "the same")

    def _progress(self, baseline: Run, faulted: Run) -> None:
        """Add what the script itself shows of its progress, as far as it shows any without faults."""
        if keys := line_keys(baseline.watch.lines):
            found = waits(new_lines(faulted.watch.lines, keys), faulted.starts)
            self._row("until a new line of output", "", _times(found), "the same")
        if baseline.watch.saves:
            self._row("until it saves again", "", _times(waits(faulted.watch.saves, faulted.starts)))
        if baseline.points is not None:
            there = faulted.points
            new = waits(there.new if there is not None else [], faulted.starts)
            said = there.beside(baseline.points) if there is not None else "none"
            self._row("points in TensorBoard", str(baseline.points.counts.total()), said, _ONCE)
            self._row("until a new point", "", _times(new), "the same")

    def _examples(self, baseline: Run, faulted: Run) -> None:
        before, after = baseline.steps.read(), faulted.steps.read()
        for data in sorted({*before, *after}):
            lost, repeated = lost_and_repeated(before.get(data, {}), after.get(data, {}))  # type: ignore[arg-type]
            self.broken |= bool(lost or repeated)
            said = f"{lost} lost ({_of_an_epoch(lost, data)}), {repeated} repeated" if lost or repeated else "the same"
            self._row(f"examples of {data}", str(before[data].total() if data in before else 0), said, _DATA)


def _arrows(sizes: Sequence[int]) -> str:
    return " → ".join(map(str, sizes))


def _listed(found: Sequence[str]) -> str:
    return "; ".join(found) or "nothing"


def _times(found: Sequence[float | None]) -> str:
    return ", ".join("never" if one is None else seconds(one) for one in found) or "-"


def _of_an_epoch(count: int, data: str) -> str:
    """Return a part of a data set in words; data: as watched.py names it."""
    return f"{count / max(1, int(data.rpartition(' ')[2])):.0%} of an epoch"

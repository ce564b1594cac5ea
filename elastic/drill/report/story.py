"""Tells a drill while it runs: each turn of a run once, though every worker records it, and what each fault cost.

Events in, lines out; a terminal also shows how far the run is. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from elastic.drill.faults.base import Aftermath, Fault
from elastic.drill.judge.surviving_steps import view_key
from elastic.drill.report.costs import Cost
from elastic.drill.report.follow import Follow
from elastic.events.event import Event
from elastic.events.words import counted

_ERROR_CHARS = 100


class Story:
    """Tells of one run, over all its launches, whenever `watching` is called while it runs.

    faults  of the plan
    total   steps that the run will have; None: nobody knows yet
    heard   called with each new event
    """

    def __init__(
        self,
        console: Console,
        follow: Follow,
        *,
        faults: Sequence[Fault] = (),
        total: int | None = None,
        heard: Callable[[Event], None] | None = None,
    ) -> None:
        self._console = console
        self._follow = follow
        self._faults = faults
        self._total = total
        self._heard = heard
        self._status: Status | None = None
        self._begun_s: float | None = None
        self._step = -1
        self._workers = 0
        self._printed: set[object] = set()
        self._struck: list[Fault] = []
        self._open: list[Event] = []  # faults that no step has followed yet

    def watching(self) -> None:
        """Print a line for each new turn of the run, and show how far it is."""
        for event in self._follow.new():
            if self._heard is not None:
                self._heard(event)
            self._begun_s = event["t"] if self._begun_s is None else self._begun_s
            for line in self._lines(event):
                self._console.print(f"  {event['t'] - self._begun_s:6.1f} s  {line}", soft_wrap=True, highlight=False)
        if self._status is not None and self._step >= 0:
            of = f" of {self._total}" if self._total is not None else ""
            self._status.update(f"step {self._step + 1}{of}, {counted(self._workers, 'worker')}")

    def __enter__(self) -> Story:
        self._status = self._console.status("starting …")
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        self._status = None

    def _lines(self, event: Event) -> Iterator[str]:
        """Yield what an event tells people, in most cases nothing."""
        kind = event["event"]
        if kind == "loaded" and event.get("from_claim") != event.get("claim") and self._once("loaded", event["claim"]):
            how = "at step 0" if event["from_claim"] is None else f"goes on from step {event['step']}, the newest save"
            begins = "it begins " if event["from_claim"] is None else "it "
            yield f"{begins}{how}, with {counted(event['world_size'], 'worker')}"
            self._workers = event["world_size"]
        elif kind == "fault" and self._once("fault", event["index"]):
            fault = self._faults[event["index"]]
            self._struck.append(fault)
            self._open += [event] if fault.aftermath() is Aftermath.LOSS else []
            yield f"[bold red]step {event['step']}, {event['phase']}: {escape(fault.in_words())}[/]"
        elif kind == "error" and any(one.finds(str(event["error"])) for one in self._struck) and self._once("found"):
            yield f"[yellow]found: {escape(str(event['error']).splitlines()[0])}[/]"
        elif kind == "awaited":
            came = "the node is there" if event["there"] else "the node did not come, and the run goes on"
            yield f"         {came}; the run has waited for it, {event['seconds']:.2f} s"
        elif kind == "step_applied":
            yield from self._applied(event)
        elif kind == "passed_over" and self._once("passed over", view_key(event), event["step"]):
            back = "" if event["first"] == event["step"] else f", back to what was saved after {event['first']}"
            yield f"[yellow]step {event['step']} is passed over{back}: {escape(_short(event['why']))}[/]"
        elif kind == "save_failed":
            yield f"[yellow]the save of step {event['step']} failed: {escape(_short(event['error']))}[/]"
        elif kind == "finished" and self._once("finished"):
            yield f"finished: {event['step']} steps"

    def _applied(self, event: Event) -> Iterator[str]:
        """Yield that a fault is over, or that the number of workers has changed."""
        self._step = event["step"]
        view, size = view_key(event), event["world_size"]
        after = [one for one in self._open if view_key(one) < view and one["t"] < event["t"]]
        if after:
            self._open = [one for one in self._open if one not in after]
            since_s = event["t"] - after[0]["t"]
            yield f"         {since_s:.2f} s later step {event['step']} is complete, by {counted(size, 'worker')}"
        elif size != self._workers and self._once("size", view):
            yield f"         {counted(size, 'worker')} from step {event['step']} on"
        self._workers = size

    def _once(self, *what: object) -> bool:
        new = what not in self._printed
        self._printed.add(what)
        return new


def of_plan(faults: Sequence[Fault]) -> Iterator[str]:
    """Yield the plan, a line for each fault."""
    for number, fault in enumerate(faults, 1):
        if fault.when.output is not None:
            yield f"{number:4}  at a line with {fault.when.output!r}: {fault.in_words()}"
            continue
        at = f"step {fault.when.step}" if fault.when.step is not None else "then"
        share = f" of share {fault.when.share}" if fault.when.share is not None else ""
        yield f"{number:4}  {at:<9} {fault.when.phase + share:<12} {fault.in_words()}"


def of_costs(costs: Sequence[Cost]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield (step, phase, what, until the next step, by how many workers, steps done again) of each fault."""
    for cost in costs:
        after = f"{cost.after_s:.2f} s" if cost.after_s is not None else "-"
        by = str(cost.workers) if cost.after_s is not None else "-"
        late = cost.fault.aftermath() is Aftermath.GROWTH and cost.after_s is None
        what = cost.fault.in_words() + (" (too late to join)" if late else "")
        yield str(cost.step), cost.phase, what, after, by, str(cost.redone)


def _short(error: object) -> str:
    """Return what its last attempt met, or its first line; of a long one the end, which says why."""
    lines = [line.strip() for line in str(error).splitlines()] or [""]
    line = ([line for line in lines if line.startswith("attempt ")] or lines[:1])[-1]
    return line if len(line) <= _ERROR_CHARS else f"…{line[-_ERROR_CHARS:]}"

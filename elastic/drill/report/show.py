"""Shows a drill's findings: at a glance what was run, what struck and which promises held; in detail, what did not.

A broken promise comes with the events that broke it, in order across workers, and with the kind of bug that looks so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from elastic.drill.judge.verdict import Violation
from elastic.drill.report.findings import PROMISES, Findings
from elastic.drill.report.story import of_costs
from elastic.events.event import Event
from elastic.events.words import printable

_EVIDENCE_SHOWN = 8
_FACTS = (
    "step",
    "generation",
    "rank",
    "world_size",
    "share",
    "attempt",
    "epoch",
    "digest",
    "sums",
    "contents",
    "error",
)
_CHARS = 24


def show(console: Console, found: Findings) -> None:
    """Print the verdict."""
    console.print("\n[bold]What struck[/bold]")
    console.print(_struck(found), soft_wrap=False)
    console.print("[bold]What was run[/bold]")
    console.print(_runs(found))
    console.print("[bold]What was promised[/bold]")
    for line in _promises(console, found):
        console.print(line, soft_wrap=True, highlight=False)
    for diagnosis in found.diagnoses:
        console.print("\n[bold yellow]In the script[/bold yellow]")
        _plain(console, str(diagnosis))
    broken = found.broken
    for promise in PROMISES:
        for run, violations in _by_run(found.of_promise(promise)):
            for invariant in dict.fromkeys(one.invariant for one in violations):
                _show_violation(console, found, run, [one for one in violations if one.invariant == invariant])
    for run, violation in found.others:
        _show_violation(console, found, run, [violation])
    console.print()
    if broken:
        console.print(f"[bold red]Broken: {len(_promises_broken(found))} of {len(PROMISES)} promises.[/bold red]")
    elif found.never:
        console.print("[bold yellow]Every promise held, but not every fault struck:[/bold yellow]")
    else:
        console.print("[bold green]Every promise held.[/bold green]", end=" ")
        console.print(f"Faults: {len(found.struck)}. Time: {found.seconds:.0f} s.", highlight=False)
    if not broken and not found.replaced:
        what = "nobody came in a lost worker's place before the run's end: with more steps the drill shows that, too"
        console.print(f"  [yellow]{what}[/yellow]", soft_wrap=True)
    for never in found.never:
        _plain(console, f"  never struck: {never}")
    if broken and not found.diagnoses:
        console.print(
            "  The records show no cause in the script. If it does nothing that its documentation rules out, this is "
            "a bug in elastic: please report it with the folder below.",
            soft_wrap=True,
        )
    if found.kept is not None:
        _plain(console, f"  kept    {found.kept}")
        if found.elsewhere is not None:
            _plain(console, f"          {found.elsewhere}")
        events = found.kept / ("disturbed" if found.elsewhere is None else "disturbed-drill")
        _plain(console, f"  report  elastic report {events}")
    if broken or found.never or found.kept is not None:
        _plain(console, f"  replay  {found.replay}")


def _plain(console: Console, said: str) -> None:
    """Print what a run or a script says, whatever is in it."""
    console.print(printable(said), markup=False, soft_wrap=True, highlight=False)


def _struck(found: Findings) -> Table:
    table = Table("step", "phase", "what", box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("next step", "by", "redone"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in of_costs(found.struck):
        table.add_row(*row)
    if found.storage:
        table.add_row("", "", f"storage: {found.storage}")
    return table


def _runs(found: Findings) -> Table:
    table = Table("", "without faults", "with faults", box=box.SIMPLE_HEAD, pad_edge=False)
    both = (found.baseline, found.faulted)
    table.add_row("workers", *(_sizes(verdict.world_sizes) for verdict in both))
    table.add_row("steps", *(f"{verdict.steps:,}" for verdict in both))
    table.add_row("steps begun again", *(f"{verdict.redone:,}" for verdict in both))
    table.add_row("examples applied", *(_examples(verdict.examples_applied) for verdict in both))
    table.add_row("SHA-256 of weights", *(f"{(verdict.weights_sha256 or 'none')[:16]}…" for verdict in both))
    table.add_row("checkpoints verified", "", f"{found.checkpoints}")
    return table


def _sizes(sizes: Sequence[int]) -> str:
    """Return sizes as 4 → 3 → 4, cut in the middle where they are many."""
    texts = [str(size) for size in sizes]
    return " → ".join(texts if len(texts) <= 12 else [*texts[:6], "…", *texts[-5:]])


def _examples(applied: Counter[int]) -> str:
    times = sorted(set(applied.values()))
    each = "" if not times else f", each {times[0]}×" if len(times) == 1 else f", {times[0]} to {times[-1]}× each"
    return f"{applied.total():,}{each}"


def _promises(console: Console, found: Findings) -> Iterator[str]:
    """Yield a line for each promise: whether it held, or why nobody knows."""
    at_the_end = list(PROMISES)[:2]
    utf = console.encoding.lower().startswith("utf")
    yes, no = ("✓", "✗") if utf else ("ok", "NO")
    for promise in PROMISES:
        broken = found.of_promise(promise)
        if broken:
            yield f"  [bold red]{no}  {promise}[/]"
        elif not found.finished and promise in at_the_end:
            yield f"  [yellow]-[/]  {promise}: the run did not get there"
        elif promise == at_the_end[0] and not found.exact:
            yield f'  [yellow]-  {promise}: not compared, mode="fast" keeps all but the last bit[/]'
        else:
            yield f"  [green]{yes}[/]  {promise}"


def _promises_broken(found: Findings) -> list[str]:
    return [promise for promise in PROMISES if found.of_promise(promise)]


def _by_run(found: Sequence[tuple[str, Violation]]) -> Iterator[tuple[str, list[Violation]]]:
    for run in ("without faults", "with faults"):
        if violations := [one for at, one in found if at == run]:
            yield run, violations


def _show_violation(console: Console, found: Findings, run: str, violations: Sequence[Violation]) -> None:
    """Print the first of its kind with its evidence, and how many more there are."""
    first = violations[0]
    promise = next((promise for promise in PROMISES if first.invariant in PROMISES[promise]), first.invariant)
    console.print(f"\n[bold red]Not so:[/] {promise} [dim]({first.invariant}, {run})[/]", highlight=False)
    _plain(console, f"  {first.message}")
    begun_s = {id(event): events[0]["t"] for events in found.events for event in events}
    baseline = {id(event) for event in found.events[0]}
    # the run without faults comes first
    evidence = sorted(first.evidence, key=lambda event: (id(event) not in baseline, float(event["t"])))
    for event in evidence[:_EVIDENCE_SHOWN]:
        label = "without faults" if id(event) in baseline else "with faults"
        at_s = event["t"] - begun_s.get(id(event), event["t"])
        line = f"    {label:<14} {at_s:7.2f} s  worker {event.get('rank', '?')}  {event['event']}  {_facts(event)}"
        _plain(console, line)
    if len(evidence) > _EVIDENCE_SHOWN:
        console.print(f"    … and {len(evidence) - _EVIDENCE_SHOWN} more events")
    if len(violations) > 1:
        console.print(f"  … and {len(violations) - 1} more like it", highlight=False)


def _facts(event: Event) -> str:
    shown = []
    for name in _FACTS:
        if name in event:
            text = str(event[name])
            shown.append(f"{name}={text if len(text) <= _CHARS else text[:_CHARS] + '…'}")
    return " ".join(shown)

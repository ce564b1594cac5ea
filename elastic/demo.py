"""Train on handwritten digits twice: undisturbed, and under SIGKILL. Then compare the weights, byte for byte.

    elastic demo        (in a clone: make demo)

The disturbed run has 4 workers and loses one in the middle of a backward pass, and later its coordinator in the
middle of an update: the others go on within a tenth of a second or two, and a new one joins them. Then it loses
everything, the launcher included, and is finished by 2 workers. Faults, processes and signals are real; the table and
the verdict are computed from the records that the workers wrote. About a minute on two cores.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, KillAll, Plan
from elastic.drill.judge.review import review
from elastic.drill.judge.verdict import Verdict
from elastic.events.event import Event
from elastic_checkpoint.command_line import Parser

RECIPE = "elastic.recipes.digits"  # recipes/digits.py
EPOCHS, STEPS = 20, 120  # 1,497 images in steps of 256: six steps an epoch
SAVE_EVERY = 10  # steps
WITHIN_S = 300  # one launch; it takes some twenty seconds
INSIDE = {"in_backward": "its backward pass", "in_update": "an update"}

console = Console(highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status: 0, 1 if a promise was broken, 2 for what cannot be done as asked."""
    parser = Parser(
        prog="elastic demo",
        description="Train on handwritten digits twice: undisturbed, and under SIGKILL. Then compare the weights, byte "
        "for byte. Takes about a minute on two cores.",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep both runs there (default: a temporary folder)"
    )
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("sklearn") is None:
        parser.error("the images of digits come with scikit-learn, which is not installed: pip install scikit-learn")
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as temporary:
        return compare(options.keep or Path(temporary))


def compare(folder: Path) -> int:
    """Run both, print what happened and the verdict; return the exit status, 0 if every promise was kept."""
    say(f"\n[bold]A convolutional network, 1,497 images of digits, {STEPS} steps, trained twice.[/bold]")
    with run(folder, "undisturbed") as baseline:
        reference = launch(baseline, "Undisturbed, 4 workers")
    with run(folder, "disturbed") as faulted:
        faulted.kill(worker=2, when=At(step=23, phase="in_backward"))
        faulted.kill(worker=0, when=At(step=53, phase="in_update"))
        faulted.kill_all(At(step=97, phase="in_update", worker=1))
        launch(faulted, "Disturbed, 4 workers")
        end = launch(faulted, "The rest of it, 2 workers", workers=2)

    bound = len(faulted.plan.faults) + SAVE_EVERY  # the step in flight of each, and the steps since a save
    verdicts = [
        review(baseline.url, reference.events, steps=STEPS, redone_max=0),
        review(faulted.url, end.events, steps=STEPS, reference=reference.events, redone_max=bound),
    ]
    console.print(table(verdicts, [reference, end]))
    wrong = [str(violation) for verdict in verdicts for violation in verdict.violations]
    wrong += [f"never happened: {fault}" for fault in end.not_reached]
    wrong += [f"left behind: {what}" for ended in (reference, end) for what in ended.left_behind]
    if wrong:
        say("\n[bold red]Promises were broken.[/bold red]")
        console.print("\n".join(wrong), markup=False, soft_wrap=True)
        return 1
    say(
        f"\n[bold green]The same weights, byte for byte:[/bold green] {verdicts[1].weights_sha256}\n"
        "In both runs each example was applied exactly once an epoch, no step was skipped or\n"
        "applied twice, the workers agreed at every step, every checkpoint is whole, and\n"
        "nothing was left behind.\n"
    )
    return 0


def run(folder: Path, name: str) -> Cluster:
    """Return a cluster of 4 workers that runs the recipe, with a folder of that name."""
    url = folder / name
    arguments = [str(url), f"--epochs={EPOCHS}", f"--save-every={SAVE_EVERY}"]
    script = importlib.util.find_spec(RECIPE)
    assert script is not None
    assert script.origin is not None
    return Cluster(
        Path(script.origin), arguments, url=url, folder=folder / f"{name}-drill", workers=4, launcher="elastic"
    )


def launch(cluster: Cluster, title: str, *, workers: int | None = None) -> End:
    """Run one launch to its end, and say in prose what happened in it."""
    known = len(cluster.events())
    begun_s = time.time()
    say(f"\n[bold]{title}[/bold]")
    cluster.start(workers=workers)
    with console.status("training …"):
        end = cluster.finish(within_s=WITHIN_S)
    for at_s, line in changes(end.events[known:], cluster.plan):
        say(f"  {at_s - begun_s:5.1f} s  {line}")
    if end.exit_code not in (0, -signal.SIGKILL):
        console.print(end.output[-3000:], markup=False)
    return end


def changes(events: Sequence[Event], plan: Plan) -> Iterator[tuple[float, str]]:
    """Yield what changed in a launch, and when, each once, though every worker records them."""
    before = None
    for event in events:
        if event["event"] == "loaded" and event["from_claim"] != event["claim"]:
            begin = "begin at" if event["from_claim"] is None else "go on from"
            lines = [f"{event['world_size']} workers {begin} step {event['step']}"]
        elif event["event"] == "fault":
            fault = plan.faults[event["index"]]
            whom = "everything, the launcher too" if isinstance(fault, KillAll) else f"worker {fault.worker}"
            lines = [f"[red]step {fault.when.step}: SIGKILL to {whom}, inside {INSIDE[fault.when.phase]}[/red]"]
            lines += [] if isinstance(fault, KillAll) else recovery(events, event)
        elif event["event"] == "finished":
            lines = [f"finished, {event['step']} steps applied"]
        else:
            continue
        if lines != before:
            yield from ((event["t"], line) for line in lines)
            before = lines


def recovery(events: Sequence[Event], fault: Event) -> Iterator[str]:
    """Yield in words how a run went on behind this fault, as the survivors recorded it."""
    applied = [e for e in events if e["event"] == "step_applied" and e["generation"] > fault["generation"]]
    first = next(iter(applied), None)
    if first is not None:
        after_s, workers = first["t"] - fault["t"], first["world_size"]
        yield f"         {workers} workers go on, and complete step {first['step']} {after_s:.2f} s later"
        joined = next((e for e in applied if e["world_size"] > workers), None)
        if joined is not None:
            yield f"         a new one has joined them at step {joined['step']}"


def table(verdicts: Sequence[Verdict], ends: Sequence[End]) -> Table:
    def once(verdict: Verdict) -> str:
        return "[green]yes[/green]" if set(verdict.examples_applied.values()) == {EPOCHS} else "[red]no[/red]"

    facts = Table("", "undisturbed", "disturbed", box=box.SIMPLE_HEAD, pad_edge=False)
    facts.add_row("workers", *(" → ".join(map(str, verdict.world_sizes)) for verdict in verdicts))
    facts.add_row("steps", *(str(verdict.steps) for verdict in verdicts))
    facts.add_row("steps redone", *(str(verdict.redone) for verdict in verdicts))
    facts.add_row("examples applied", *(f"{verdict.examples_applied.total():,}" for verdict in verdicts))
    facts.add_row("each once an epoch", *(once(verdict) for verdict in verdicts))
    facts.add_row("accuracy, held out", *(accuracy(end.output) for end in ends))
    facts.add_row("SHA-256 of weights", *(f"{(verdict.weights_sha256 or 'none')[:16]}…" for verdict in verdicts))
    return facts


def accuracy(output: str) -> str:
    """Return the accuracy that the recipe printed, or "none"."""
    found = re.search(r"held-out images: (\S+%)", output)
    return found[1] if found else "none"


def say(line: str) -> None:
    console.print(line, soft_wrap=True)

"""The command `elastic`, also `python -m elastic`. `elastic run` is run_command.py's, with torchrun's flags."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from checkpoint import CheckpointError
from elastic.drill import command
from elastic.launch import run_command
from elastic.observe.events import read_events
from elastic.observe.report import Report, report

EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for what cannot be done as asked; `elastic run` has others, too."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["run"]:
        return run_command.main(argv[1:])
    if argv[:1] == ["drill"]:
        return command.main(argv[1:])
    parser = argparse.ArgumentParser(
        prog="elastic", description="Training runs whose result does not depend on what happens to their workers."
    )
    parser.add_argument("--version", action="version", version=f"elastic {version('elastic-training')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="runs a training script, and recovers live (torchrun's flags)", add_help=False)
    drill = "runs a script with faults and without, and judges that nothing was lost"
    commands.add_parser("drill", help=drill, add_help=False)
    about = commands.add_parser("report", help="what became of a run, from its events")
    about.add_argument("run", help="the run's folder or URL")
    about.add_argument("--json", action="store_true", help="print the facts as JSON")
    options = parser.parse_args(argv)
    return _report(options.run, as_json=options.json)


def _report(url: str, *, as_json: bool) -> int:
    try:
        events = read_events(url)
    except CheckpointError as unreadable:
        print(f"elastic report: {unreadable}", file=sys.stderr)
        return EXIT_USAGE
    if not events:
        print(
            f"elastic report: no events in {url}\n"
            "  next  give the folder or URL that was passed to elastic.Run; a run writes events from its start on",
            file=sys.stderr,
        )
        return EXIT_USAGE
    found = report(events)
    if as_json:
        print(json.dumps(found.facts()))
    else:
        Console().print(_table(url, found))
        if found.weights_sha256:
            print(f"SHA-256 of the weights: {found.weights_sha256}")
    return 0


def _table(url: str, found: Report) -> Table:
    table = Table(title=url, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    rows = {
        "state": found.state,
        "steps": f"{found.steps:,} applied, {found.redone:,} redone, epoch {found.epoch}",
        "world sizes": " → ".join(map(str, found.world_sizes)),
        "starts": f"{found.claims}, after {found.peers_lost} lost exchanges and {len(found.notices)} notices",
        "saves": f"{found.saves:,} of {found.saved_bytes / 1e6:,.1f} MB, for which training stood still "
        f"{found.save_stall_seconds:.1f} s; {found.save_failures} failed",
        "time": f"{found.seconds:,.0f} s from the first event to the last",
    }
    if found.accepted:
        rows["accepted"] = f"{', '.join(found.accepted)} differed: the bits of the result may, too"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    sys.exit(main())

"""`elastic report RUN`: what became of a run, from its events, in the terminal, as JSON or as a page."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from checkpoint import CheckpointError
from checkpoint.storage import redact
from elastic.observe import schema
from elastic.observe.events import Event, local_folder, read_events
from elastic.observe.page import page
from elastic.observe.report import report
from elastic.observe.summary import summary

_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0, or 2 for what cannot be done as asked."""
    parser = argparse.ArgumentParser(
        prog="elastic report", description="What became of a run: what happened, what it cost, where the time went."
    )
    parser.add_argument("run", nargs="?", help="the run's folder or URL")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON; keys stay as they are")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page that is complete in itself")
    parser.add_argument("--schema", action="store_true", help="print which events there are, and what each says")
    parser.add_argument(
        "--storage-options", metavar="JSON", type=json.loads, help="for fsspec's filesystem, as in elastic.Run"
    )
    options = parser.parse_args(argv)
    if options.schema:
        print(schema.table(), end="")
        return 0
    if options.run is None:
        parser.error("give the run's folder or URL")
    try:
        events = read_events(options.run, storage_options=options.storage_options)
    except CheckpointError as unreadable:
        print(f"elastic report: {unreadable}", file=sys.stderr)
        return _USAGE
    name = redact(options.run)
    if not events:
        print(
            f"elastic report: no events in {name}\n"
            "  next  give the folder or URL that was passed to elastic.Run; a run writes events from its start on",
            file=sys.stderr,
        )
        return _USAGE
    return _print(name, events, as_json=options.json, html=options.html)


def _print(name: str, events: Sequence[Event], *, as_json: bool, html: Path | None) -> int:
    found = report(events)
    if html is not None:
        try:
            html.write_text(page(_short(name), events, found), encoding="utf-8")
        except OSError as refused:
            print(f"elastic report: the page was not written: {refused}\n  next  give another file", file=sys.stderr)
            return _USAGE
    if as_json:
        print(json.dumps(found.facts(), allow_nan=False))
    elif html is not None:
        print(html)
    else:
        Console(highlight=False).print(summary(name, found))
    return 0


def _short(name: str) -> str:
    """A local run by its last two folders: the page may be passed on."""
    folder = local_folder(name)
    return name if folder is None else os.path.join(*folder.absolute().parts[-2:])

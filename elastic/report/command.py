"""`elastic report RUN`: what became of a run, from its events, in the terminal, as JSON or as a page."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from elastic.events import declarations, words
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.events.sinks import local_folder
from elastic.report import clocks
from elastic.report.damaged_records import sound
from elastic.report.report import report
from elastic.report.summary import summary
from elastic_checkpoint import CheckpointError
from elastic_checkpoint.command_line import USAGE, Parser, add_storage_option, storage_options
from elastic_checkpoint.storage import redact


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, or 2 for what cannot be done as asked."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets its report
    try:
        status = _main(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where Python flushes at its exit
        return 0
    return status


def _main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="elastic report", description="What became of a run: what happened, what it cost, where the time went."
    )
    parser.add_argument("run", nargs="?", help="the run's folder or URL")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON; keys stay as they are")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page that is complete in itself")
    parser.add_argument("--schema", action="store_true", help="print which events there are, and what each says")
    add_storage_option(parser.add_argument)
    options = parser.parse_args(argv)
    if options.schema:
        print(declarations.table(), end="")
        return 0
    if options.run is None:
        parser.error("give the run's folder or URL")
    try:
        events = read_events(options.run, storage_options=storage_options(options))
    except CheckpointError as unreadable:
        print(f"elastic report: {unreadable}", file=sys.stderr)
        return USAGE
    except (OSError, ValueError, ImportError) as unreadable:
        why = redact(str(unreadable)) or type(unreadable).__name__
        print(
            f"elastic report: the events of {redact(options.run)} cannot be read: {why}\n"
            "  next  give a folder or an fsspec URL that can be read from here",
            file=sys.stderr,
        )
        return USAGE
    name = redact(options.run)
    events, damaged = sound(events)
    if damaged:
        print(
            f"elastic report: {damaged:,} damaged record{'s' if damaged > 1 else ''} left out; what follows may lack"
            " something",
            file=sys.stderr,
        )
    events = _by_one_clock(events)
    if not events:
        print(
            f"elastic report: no events in {name or repr(name)}\n"
            "  next  give the folder or URL that was passed to elastic.Run; a run writes events from its start on",
            file=sys.stderr,
        )
        return USAGE
    return _print(name, events, as_json=options.json, html=options.html)


def _by_one_clock(events: Sequence[Event]) -> list[Event]:
    """Correct the times of hosts whose clocks differ, and say so on stderr."""
    ahead = clocks.offsets(events)
    for host, seconds in sorted(ahead.items()):
        differs = f"{words.seconds(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"
        print(f"elastic report: the clock of {host} is {differs} the others'; its times are corrected", file=sys.stderr)
    return clocks.aligned(events, ahead)


def _print(name: str, events: Sequence[Event], *, as_json: bool, html: Path | None) -> int:
    """Print the report, or write its page and print where; return the exit status."""
    found = report(events)
    if html is not None:
        from elastic.report.page import page  # with the templates' engine, which few need

        try:
            html.write_text(page(_short(name), events, found), encoding="utf-8", errors="replace")
        except OSError as refused:
            print(f"elastic report: the page was not written: {refused}\n  next  give another file", file=sys.stderr)
            return USAGE
    if as_json:
        print(json.dumps(found.facts(), allow_nan=False))
    elif html is not None:
        print(html)
    else:
        Console(highlight=False).print(summary(name, found, now=time.time()))
    return 0


def _short(name: str) -> str:
    """Name a local run by its last two folders: the page may be passed on."""
    folder = local_folder(name)
    return name if folder is None else os.path.join(*folder.absolute().parts[-2:])

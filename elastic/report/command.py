"""`elastic report RUN`: what became of a run, from its events, in the terminal, as JSON or as a page."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from elastic_checkpoint.command_line import USAGE, Parser, add_storage_option, seconds_from, storage_options
from elastic_checkpoint.storage import redact

_PORT = 6007
_EVERY_S, _EVERY_MIN_S = 10.0, 1.0


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
    parser.add_argument("--serve", action="store_true", help="serve the page over HTTP, made anew, until Ctrl-C")
    parser.add_argument(
        "--host",
        type=_host,
        default="127.0.0.1",
        help="with --serve: the address (default %(default)s: this machine alone sees it)",
    )
    parser.add_argument(
        "--port", type=_port, default=_PORT, help="with --serve: the port, 0: any that is free (default %(default)s)"
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=seconds_from(_EVERY_MIN_S),
        default=_EVERY_S,
        help="with --serve: how often it is read, while somebody looks (default %(default)g)",
    )
    parser.add_argument("--schema", action="store_true", help="print which events there are, and what each says")
    add_storage_option(parser.add_argument)
    options = parser.parse_args(argv)
    if options.schema:
        print(declarations.table(), end="")
        return 0
    if options.run is None:
        parser.error("give the run's folder or URL")
    if options.serve and (options.json or options.html):
        parser.error("--serve has the page at /, and the JSON at /report.json: leave --json and --html out")
    run, given = options.run, storage_options(options)
    if options.serve:
        return _serve(run, given, options)
    try:
        events, notes = _read(run, given)
    except _Unread as unread:
        print(unread, file=sys.stderr)
        return USAGE
    for note in notes:
        print(note, file=sys.stderr)
    return _print(redact(run), events, as_json=options.json, html=options.html)


class _Unread(Exception):
    """A run has no events, or none that can be read; in words for people."""


def _read(run: str, given: dict[str, Any] | None) -> tuple[list[Event], list[str]]:
    """Return a run's events, and what is to be said of them. Raises _Unread."""
    name = redact(run)
    try:
        events = read_events(run, storage_options=given)
    except CheckpointError as unreadable:
        raise _Unread(f"elastic report: {unreadable}") from None
    except (OSError, ValueError, ImportError) as unreadable:
        why = redact(str(unreadable)) or type(unreadable).__name__
        raise _Unread(
            f"elastic report: the events of {name} cannot be read: {why}\n"
            "  next  give a folder or an fsspec URL that can be read from here"
        ) from None
    events, damaged = sound(events)
    notes = []
    if damaged:
        notes.append(
            f"elastic report: {damaged:,} damaged record{'s' if damaged > 1 else ''} left out; what follows may lack"
            " something"
        )
    ahead = clocks.offsets(events)
    for host, seconds in sorted(ahead.items()):
        differs = f"{words.seconds(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"
        notes.append(f"elastic report: the clock of {host} is {differs} the others'; its times are corrected")
    events = clocks.aligned(events, ahead)
    if not events:
        raise _Unread(
            "\n".join([*notes, f"elastic report: no events in {name or repr(name)}"])
            + "\n  next  give the folder or URL that was passed to elastic.Run; a run writes events from its start on"
        )
    return events, notes


def _serve(run: str, given: dict[str, Any] | None, options: argparse.Namespace) -> int:
    """Serve the run's page until Ctrl-C; return the exit status."""
    from elastic.report.page import page  # with the templates' engine, which few need
    from elastic.report.serve import Answer, ReportServer

    said: set[str] = set()

    def look() -> Answer:
        try:
            events, notes = _read(run, given)
        except _Unread as unread:
            return Answer(why_not=f"{unread}\n")
        for note in notes:
            if note not in said:
                said.add(note)
                print(note, file=sys.stderr, flush=True)
        found = report(events)
        return Answer(functools.cache(lambda: page(_short(redact(run)), events, found)), found.facts())

    try:
        server = ReportServer(look, host=options.host, port=options.port, every_s=options.every)
    except OSError as refused:
        why = "something listens there already" if refused.errno == errno.EADDRINUSE else refused.strerror
        is_port = refused.errno in (errno.EADDRINUSE, errno.EACCES)
        next = "--port=0 takes one that is free" if is_port else "give an address of this machine"
        print(
            f"elastic report: --host={options.host} --port={options.port}: {why}\n"
            "  state  nothing is served\n"
            f"  next   {next}",
            file=sys.stderr,
        )
        return USAGE
    try:
        print(f"{server.address}\nCtrl-C ends it", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()
    return 0


def _host(text: str) -> str:
    with contextlib.suppress(UnicodeError):
        if text.encode("idna"):  # with none, a server listens on all addresses, and for whoever asks by any name
            return text
    raise argparse.ArgumentTypeError(f"{text!r} is no address; 0.0.0.0 stands for all of this machine")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


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

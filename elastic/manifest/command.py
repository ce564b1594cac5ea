"""`elastic manifest RUN`: what a run was made with, launch by launch; with --diff, beside another run."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from elastic.errors import WrittenByNewer
from elastic.events import words
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.manifest import files, schema
from elastic.manifest.differences import Difference, Effect, differences
from elastic_checkpoint import CheckpointError
from elastic_checkpoint.cli.screen import escaped, one_line
from elastic_checkpoint.command_line import USAGE, Parser, add_storage_option, storage_options
from elastic_checkpoint.storage import open_storage, redact

_EQUAL, _DIFFERS = 0, 1
_ANSWER_S = 30.0
_SHOWN = 100  # characters of a value
_STYLES = {Effect.DECIDES: "bold red", Effect.MAY: "yellow", Effect.NOT: "dim"}
_FOLDED = ("identity", "packages.versions", "arguments")  # parts of which people see a line; --json has all of them


class _NoManifest(Exception):
    """There is none; the message says what to do."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, 1 where --diff finds what decides bits, 2 for what cannot be done."""
    parser = Parser(
        prog="elastic manifest",
        description="What a run was made with: script, commit, packages, machine, arguments, and what its launches had "
        "otherwise.",
        epilog="Exit status: 0, or with --diff 1 where something differs that decides the result's bits; 2 it cannot "
        "be done as asked.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run's folder or URL")
    parser.add_argument("--diff", metavar="RUN2", help="compare with this run, what decides bits first")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a manifest")
    parser.add_argument("--fields", action="store_true", help="print every field, and what it means")
    add_storage_option(parser.add_argument)
    asked = parser.parse_args(argv)
    if asked.schema or asked.fields:
        print(schema.json_schema() if asked.schema else schema.table(), end="\n" if asked.schema else "")
        return _EQUAL
    if asked.run is None:
        parser.error("give the run's folder or URL")
    options = storage_options(asked)
    try:
        manifest, launches = _read(asked.run, options)
        if asked.diff is not None:
            return _compare(manifest, _read(asked.diff, options)[0], as_json=asked.json)
        views = _views(read_events(asked.run, storage_options=options))
    except (_NoManifest, CheckpointError, WrittenByNewer) as refused:
        print(f"elastic manifest: {refused}", file=sys.stderr)
        return USAGE
    except (OSError, ValueError, ImportError) as unreadable:
        print(f"elastic manifest: {redact(str(unreadable)) or type(unreadable).__name__}", file=sys.stderr)
        return USAGE
    if asked.json:
        print(json.dumps({"manifest": manifest, "launches": launches, "views": views}))
    else:
        _screen().print(Group(*_shown(manifest, launches, views)))
    return _EQUAL


def _read(url: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a run's manifest and those of its launches. Raises _NoManifest, and what the storage raises."""
    opened = open_storage(url, options, retry_s=_ANSWER_S, answer_s=_ANSWER_S)
    with contextlib.closing(opened) as storage:
        manifest = files.read_manifest(storage)
        if manifest is None:
            raise _NoManifest(
                f"no manifest in {redact(url)}\n"
                "  next  give the folder or URL that was passed to elastic.Run; an older run has one once it is "
                "launched again"
            )
        return manifest, files.read_launches(storage, manifest)


def _views(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the cluster's shape over time, from events: of each view when it formed, and workers by host."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for event in events:
        if event["event"] == "view_formed" and event.get("rank") == 0:
            hosts: dict[str, int] = {}
            for worker in event["workers"]:
                host = str(worker).rsplit("-", 2)[0]
                hosts[host] = hosts.get(host, 0) + 1
            at = {"t": event["t"], "generation": event.get("generation", 0), "world_size": len(event["workers"])}
            found[event["worker"], at["generation"]] = {**at, "hosts": hosts}
    return list(found.values())


def _compare(one: Mapping[str, Any], other: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what differs between two runs; return the exit status."""
    found = differences(one, other)
    if as_json:
        print(json.dumps({"differences": [asdict(each) for each in found]}))
    elif not found:
        print("no difference")
    else:
        _screen().print(table(found, ("this run", "the other")))
    return _DIFFERS if any(each.effect is Effect.DECIDES for each in found) else _EQUAL


def table(found: Sequence[Difference], names: tuple[str, str]) -> Table:
    """Return a table of differences; names: of both sides."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("bits", "field", *names):
        made.add_column(column, overflow="fold")
    for each in found:
        style = _STYLES[each.effect]
        made.add_row(Text(each.effect.value, style), Text(one_line(each.path)), _value(each.one), _value(each.other))
    return made


def _shown(
    manifest: Mapping[str, Any], launches: Sequence[Mapping[str, Any]], views: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """Return what people see of a run."""
    fields = Table(box=None, pad_edge=False, show_header=False)
    fields.add_column(style="bold")
    fields.add_column(overflow="fold")
    for path, value in _lines("", manifest):
        fields.add_row(Text(one_line(path)), _value(value))
    shown: list[Any] = [fields]
    for launch in launches:
        run = launch["run"]
        went_on = run.get("resumed_from")
        how = f"goes on from step {went_on['step']}" if went_on else "begins"
        shown.append(
            Text(f"\nlaunch {run['claim']}  {_time(run['t'])}  {words.workers(run['world_size'])}  {how}", "bold")
        )
        found = [each for each in differences(manifest, launch) if each.effect is not Effect.NOT]
        if found:
            shown.append(table(found, ("first launch", "this one")))
    if views:
        shown.append(Text("\nviews", "bold"))
    for view in views:
        hosts = ", ".join(f"{escaped(host)}: {count}" for host, count in view["hosts"].items())
        shown.append(Text(f"{_time(view['t'])}  {words.workers(view['world_size'])}  {hosts}"))
    return shown


def _lines(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Yield the fields that people see."""
    if path in _FOLDED or not isinstance(value, Mapping) or not value:
        yield path, f"{len(value):,} fields: --json" if path in _FOLDED and value else value
        return
    for name, item in value.items():
        yield from _lines(f"{path}.{name}" if path else name, item)


def _value(value: Any) -> Text:
    text = one_line(value if isinstance(value, str) else json.dumps(value))
    return Text(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _time(t: float) -> str:
    return datetime.fromtimestamp(t, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _screen() -> Console:
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())

"""`elastic watch RUN`: the status of a run that goes on anywhere, from its events in storage. It only reads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from elastic.errors import WrittenByNewer
from elastic.events import words
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.manifest.files import read_launches, read_manifest
from elastic.report.completion import Completion, completion
from elastic.status import terminal
from elastic.status.tracker import Status, StatusTracker
from elastic_checkpoint import CheckpointError
from elastic_checkpoint.command_line import USAGE, Parser, add_storage_option, seconds_from, storage_options
from elastic_checkpoint.storage import open_storage, redact

_STATES = {Completion.FINISHED: "finished", Completion.LEFT: "left", Completion.UNFINISHED: "going on"}
_EVERY_S, _EVERY_MIN_S = 5.0, 0.1
_ANSWER_S = 30.0
_CODES = re.compile(r"\x1b\[[0-9;]*m")  # a terminal's, for colour
_SILENT_S = 300.0  # events of a run in storage are this old at most, as long as it goes on


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, or 2 for what cannot be read."""
    parser = Parser(
        prog="elastic watch",
        description="Shows how a run goes on, wherever it runs, from what it writes into its storage. It only reads.",
    )
    parser.add_argument("run", help="the run's folder or URL")
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--json", action="store_true", help="as a line of JSON each time; keys stay as they are")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=seconds_from(_EVERY_MIN_S),
        default=_EVERY_S,
        help="how often it is read (default %(default)g)",
    )
    add_storage_option(parser.add_argument)
    options = parser.parse_args(argv)
    given = storage_options(options)
    name = redact(options.run)
    try:
        total_steps = _total_steps(options.run, given)
        while True:
            events = read_events(options.run, storage_options=given)
            found = status(events, total_steps=total_steps)
            if found is None:
                print(f"elastic watch: no step of {name} is applied yet", file=sys.stderr)
            else:
                _show(found, as_json=options.json)
            if options.once or (found is not None and found["state"] != "going on"):
                return 0
            time.sleep(options.every)
    except KeyboardInterrupt:
        return 0
    except (CheckpointError, OSError, ValueError, ImportError) as unreadable:
        why = redact(str(unreadable)) or type(unreadable).__name__
        print(
            f"elastic watch: the events of {name} cannot be read: {why}\n"
            "  state  the run is as it was: nothing was written\n"
            "  next   give a folder or an fsspec URL that can be read from here",
            file=sys.stderr,
        )
        return USAGE


def status(events: Sequence[Event], *, total_steps: int = 0) -> Status | None:
    """Return what the coordinator of the newest launch shows, as StatusTracker gives it; None: no step is applied.

    Beside that, `state` is "going on" (a report's "unfinished"), "finished" or "left" (in order: the same command goes
    on with it), and `heard` when the newest event was written, in unix seconds.
    """
    steps = [event for event in events if event["event"] == "step_applied" and event.get("rank") == 0]
    if not steps:
        return None
    newest = max(event.get("claim") or 0 for event in steps)  # a launch that has just begun shows those before
    own = [event for event in events if (event.get("claim") or 0) in (0, newest)]
    coordinator = [event for event in steps if (event.get("claim") or 0) == newest][-1]["worker"]
    begun = next((e for e in own if e["event"] == "run_started" and e["worker"] == coordinator), None)
    shares = int((begun or {}).get("config", {}).get("virtual_workers") or 1)
    shown: list[Status] = []
    tracker = StatusTracker(
        total_steps=max(total_steps, steps[-1]["step"] + 1), shares=shares, show=shown.append, every_s=0.0
    )
    for event in own:
        if event["worker"] == coordinator:
            tracker.hear(event)
    return {**shown[-1], "state": _STATES[completion(events)], "heard": float(events[-1]["t"])}


def _total_steps(run: str, options: dict[str, Any] | None) -> int:
    """Return how many steps the run is to apply, by the manifest of its newest launch; 0: it does not say."""
    launches: list[dict[str, Any]] = []
    opened = open_storage(run, options, retry_s=_ANSWER_S, answer_s=_ANSWER_S)
    with contextlib.closing(opened) as storage, contextlib.suppress(WrittenByNewer):  # its events may be read
        launches = read_launches(storage, read_manifest(storage) or {})
    newest = launches[-1] if launches else {}
    return int(newest.get("arguments", {}).get("resolved", {}).get("total_steps") or 0)


def _show(found: Status, *, as_json: bool) -> None:
    now_t = time.time()
    if as_json:
        print(json.dumps(found, allow_nan=False), flush=True)
        return
    width = os.get_terminal_size().columns if sys.stdout.isatty() else 200
    first, second = terminal.lines(found, now_t, width)
    if not sys.stdout.isatty():
        first, second = (_CODES.sub("", line) for line in (first, second))
    old_s = max(now_t - found["heard"], 0.0)
    state = found["state"]
    if state == "going on" and old_s > _SILENT_S:
        state = "silent: it may have ended without a word"
    print(f"{first}\n{second}\n{state}, heard of {words.seconds(old_s)} ago", flush=True)

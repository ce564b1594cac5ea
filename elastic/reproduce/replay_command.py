"""`elastic replay RUN --step N`: computes a step again, in one process, from the newest checkpoint before it.

What each share comes to is printed, with its examples, and compared with the run's record: a NaN becomes the number of
an example. The run is only read: a copy of that checkpoint is what the script goes on from, in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elastic_checkpoint
from elastic.record import Part, Record, StepRecord, read_record
from elastic.reproduce import launch
from elastic.reproduce.command import carried_out, launches
from elastic.reproduce.observer import Elsewhere, last_part
from elastic.reproduce.replay_observer import Asked
from elastic.reproduce.source_tree import CannotReproduce, checked_out, field_of
from elastic.reproduce.verdict import ONLY_READ, PART_WORDS
from elastic_checkpoint.command_line import Parser, add_storage_option
from elastic_checkpoint.storage import Storage

_EQUAL, _DIFFERS = 0, 1
_SHOWN = 32  # examples of a share
_AS_IT_WAS = "the run is as it was"


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0 it is what was recorded, 1 it is not, 2 for what cannot be done."""
    return carried_out(parser(), argv, _replay)


def parser() -> Parser:
    made = Parser(
        prog="elastic replay",
        description="Computes a step of a run again, in one process, from the newest checkpoint before it, and prints "
        "what each share comes to, with its examples, beside what the run has on record. The run is only read. "
        "The script runs in the folder in which it ran, its loggers write nothing, and other files that it writes are "
        "written again.",
        epilog="Exit status: 0 it is what was recorded, of --share in what it reads; 1 it is not, nothing was, or only "
        "what was read can be compared; 2 it cannot be done as asked. What stands behind -- takes the place of the "
        "script's arguments.",
    )
    made.add_argument("run", metavar="RUN", help="the run's folder or URL")
    made.add_argument("--step", type=int, required=True, metavar="N", help="which step, from 0")
    made.add_argument("--share", type=int, metavar="S", help="only up to this share, from 0")
    made.add_argument("--pdb", action="store_true", help="stop in a debugger, where the script gets the batch")
    made.add_argument("--profile", action="store_true", help="under torch's profiler: a table, and a trace here")
    made.add_argument("--detect-anomaly", action="store_true", help="with torch's anomaly detection")
    made.add_argument("--here", action="store_true", help="with the script as it is here now, and not as it was")
    made.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_storage_option(made.add_argument)
    return made


def _replay(asked: argparse.Namespace, given: Sequence[str], storage: Storage, options: dict[str, Any]) -> int:
    made = launches(storage, asked.run)
    manifest = made[-1]
    for kind, in_all in (("step", "total_steps"), ("share", "virtual_workers")):
        number, count = getattr(asked, kind), field_of(manifest, f"arguments.resolved.{in_all}", int)
        if number is not None and not 0 <= number < count:
            raise CannotReproduce(f"--{kind} {number}: the run has {kind}s 0 to {count - 1}", next="give one of these")
    name, words = last_part(field_of(manifest, "run.url", str)), launch.arguments(manifest, given)
    record = read_record(asked.run, options)
    unlike = launch.other_size(record.mode, made, 1)
    with (
        tempfile.TemporaryDirectory(prefix="elastic-replay-", ignore_cleanup_errors=True) as folder,
        checked_out(manifest, storage, as_it_is=asked.here) as tree,
    ):
        into = str(Path(folder, "run"))
        begins = _copy(asked.run, options, into, asked.step)
        print(f"from the checkpoint of step {begins}" if begins is not None else "from the beginning", file=sys.stderr)
        tree.unchecked += [*launch.installed_from_folders(manifest, storage), *([unlike] if unlike else [])]
        for words_of in tree.unchecked:
            print(f"not checked: {words_of}", file=sys.stderr)
        told = Asked(
            step=asked.step,
            into=str(Path(folder, "seen.json")),
            share=asked.share,
            debugs=asked.pdb,
            profiles=asked.profile,
            detects=asked.detect_anomaly,
        )
        to = Elsewhere(name=name, url=into)
        environ = launch.environment(manifest, tree, to, "elastic.reproduce.replay_observer:observer")
        output = None if asked.pdb else sys.stderr
        status = launch.run(sys.executable, tree, words, {**environ, **told.environment()}, output=output)
        seen = _seen(Path(told.into))
        trace = Path(folder, f"replay-step-{asked.step}.json")
        if trace.exists():
            _keep(trace)
    if seen is None:
        raise CannotReproduce(
            f"the script ended with status {status} before step {asked.step} was computed",
            state=_AS_IT_WAS,
            next="see what it says above; behind -- stand other arguments for it",
        )
    if asked.share is not None:
        _check_share(asked.share, asked.step, [one["share"] for one in seen["shares"]])
    compared = _compared(seen, record, asked.share, only_read=unlike is not None)
    if asked.json:
        found: dict[str, Any] = {"recorded": False, "differs": None, "tensor": None, "compared": []}
        if compared is not None:
            found = {
                "recorded": True,
                "differs": compared.apart,
                "tensor": compared.tensor,
                "compared": sorted(compared.parts),
            }
        print(json.dumps({**seen, **found}))
    else:
        print("\n".join([*_words(seen, asked.share), *_verdict(asked.step, asked.share, compared, status)]))
    return _EQUAL if compared is not None and compared.is_equal else _DIFFERS


def _check_share(asked: int, step: int, seen: Sequence[int]) -> None:
    """Raise CannotReproduce where the step has no such share; seen: those that it has."""
    if asked not in seen:
        raise CannotReproduce(
            f"--share {asked}: step {step} has no examples for it",
            state=_AS_IT_WAS,
            next=f"give one of shares 0 to {seen[-1]}" if seen else "leave out --share",
        )


def _copy(url: str, options: dict[str, Any], into: str, step: int) -> int | None:
    """Copy the newest checkpoint that the step can be computed from; return its step, None: there is none."""
    with elastic_checkpoint.Checkpointer(url, storage_options=options or None) as there:
        steps = [one.step for one in there.list() if one.in_lineage and one.step <= step]
        if not steps:
            return None
        found = there.read(step=max(steps))
    with elastic_checkpoint.Checkpointer(into) as here:
        here.save(found.step, found.tree, meta=found.meta)
    return int(found.step)


def _seen(file: Path) -> dict[str, Any] | None:
    """Return what was seen; None: nothing was, or the process was killed as it wrote that."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(file.read_text()))
    return None


def _keep(trace: Path) -> None:
    """Copy the profiler's trace into the current folder."""
    try:
        shutil.copyfile(trace, trace.name)
        print(f"the trace is {trace.name}", file=sys.stderr)
    except OSError as refused:
        print(f"the trace is not kept: {refused}; call this where files can be written", file=sys.stderr)


@dataclass(frozen=True)
class _Compared:
    """A step, or a share of it, beside the record.

    parts     that both have
    apart     what differs, in words
    is_equal  nothing does, and that says what was asked: of a step, that the same was computed
    tensor    the first that differs, in words, where it is known
    """

    parts: set[Part]
    apart: list[str]
    is_equal: bool
    tensor: str | None = None


def _compared(seen: Mapping[str, Any], record: Record, share: int | None, *, only_read: bool) -> _Compared | None:
    """Return what was compared with the record; None: it does not have what could be. only_read: see compare()."""
    recorded = record.steps.get(seen["step"])
    if recorded is None:
        return None
    if share is not None:
        read = next((one["read"] for one in seen["shares"] if one["share"] == share), 0)
        known = recorded.shares[share][0] if share < len(recorded.shares) else 0
        if not (read and known):
            return None
        apart = [] if read == known else [f"other values are read by share {share}"]
        return _Compared({Part.READ}, apart, not apart)
    line = StepRecord.of(seen.get("line"))
    if line is None:
        return None
    parts = {part for part in line.compared(recorded) if part is Part.READ or not only_read}
    apart = [words for part, words in line.differs(recorded) if part in parts]
    tensor = None if only_read else line.tensor_apart(recorded)
    return _Compared(parts, apart, not apart and any(part.is_computed for part in parts), tensor)


def _words(seen: Mapping[str, Any], share: int | None) -> list[str]:
    """Return what people see of the shares."""
    said, odd = [], list[int]()
    for one in seen["shares"]:
        if share is not None and one["share"] != share:
            continue
        examples = ", ".join(map(str, one["indices"][:_SHOWN]))
        more = f" and {len(one['indices']) - _SHOWN} more" if len(one["indices"]) > _SHOWN else ""
        loss = one["loss"] if one["loss"] is not None else "not passed back"
        said.append(f"share {one['share']}: loss {loss}, gradient norm {one['norm']}, digest {one['gradients']}")
        said.append(f"  examples  {examples}{more}")
        if one["not_finite"]:
            odd += one["not_finite"]
        elif one["loss"] is not None and not math.isfinite(float(one["loss"])):
            said.append("  its loss is not finite, and all numbers of its examples are")
        elif one["first_not_finite"] is not None:
            said.append(f"  the gradient of {one['first_not_finite']} is not finite")
    if odd:
        said.append(f"NOT FINITE: numbers in {'example' if len(odd) == 1 else 'examples'} {', '.join(map(str, odd))}")
    return said


def _verdict(step: int, share: int | None, compared: _Compared | None, status: int) -> list[str]:
    what = f"step {step}" if share is None else f"share {share} of step {step}"
    if compared is None:
        ended = f" (the script ended with status {status} in it)" if status else ""
        return [f"{what} is not compared: the run has it not on record, or it came to no end{ended}"]
    if compared.apart:
        return [f"{what} is not what the run has on record:", *(f"  {words}" for words in compared.apart)]
    if share is not None:
        return [f"{what} reads what the run has on record; what it computes is not on record by itself"]
    if not compared.is_equal:
        return [f"{ONLY_READ}: {what} reads what the run has on record"]
    parts = ", ".join(PART_WORDS[part] for part in PART_WORDS if part in compared.parts)
    return [f"{what} is what the run has on record, bit by bit", f"  compared  {parts}"]

"""`elastic reproduce RUN`: makes a run again, here, at any number of workers, and says whether it is the same one.

what it was made with, from its manifest  ->  its script at its commit, in a temporary worktree  ->  the same launch
elsewhere  ->  both records, step by step  ->  equal; or the first step that differs, and what explains it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import elastic_checkpoint
from elastic.manifest import files
from elastic.manifest.command import table
from elastic.manifest.differences import Difference, Effect, differences
from elastic.record import read_record
from elastic.reproduce import launch
from elastic.reproduce.observer import Elsewhere, last_part
from elastic.reproduce.source_tree import CannotReproduce, checked_out
from elastic.reproduce.verdict import compare
from elastic_checkpoint import CheckpointError
from elastic_checkpoint.command_line import USAGE, Parser, add_storage_option, storage_options
from elastic_checkpoint.load.diff import Side
from elastic_checkpoint.load.diff import compare as compare_checkpoints
from elastic_checkpoint.storage import Storage, open_storage, redact

_EQUAL, _DIFFERS = 0, 1
_ANSWER_S = 30.0
_APART = "--"


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0 only if all is equal, 1 if not, 2 for what cannot be done."""
    given, asked = parsed(parser(), argv)
    options = storage_options(asked)
    try:
        with opened(asked.run, options) as storage:
            return _reproduce(asked, given, storage, options)
    except (CannotReproduce, CheckpointError) as refused:
        print(f"elastic reproduce: {refused}", file=sys.stderr)
    except (OSError, ValueError, ImportError) as unreadable:
        print(f"elastic reproduce: {redact(str(unreadable)) or type(unreadable).__name__}", file=sys.stderr)
    return USAGE


def parser() -> Parser:
    made = Parser(
        prog="elastic reproduce",
        description="Makes a run again from its manifest, at any number of workers, and compares it step by step with "
        "what the run has on record.",
        epilog="Exit status: 0 only if every step is equal; 1 one differs, or is not on record; 2 it cannot be done as "
        "asked. What stands behind -- takes the place of the script's arguments.",
    )
    made.add_argument("run", metavar="RUN", help="the run's folder or URL")
    made.add_argument("--workers", type=int, metavar="N", help="how many make it again (default: as many as it had)")
    made.add_argument("--into", metavar="URL", help="where it is made (default: a temporary folder, which is removed)")
    made.add_argument("--steps", type=int, metavar="N", help="only the first N steps")
    made.add_argument("--here", action="store_true", help="with the script as it is here now, and not as it was")
    made.add_argument("--environment", action="store_true", help="install what the run had, by its lock file, beside")
    made.add_argument("--json", action="store_true", help="print the verdict as JSON")
    add_storage_option(made.add_argument)
    return made


def parsed(made: Parser, argv: Sequence[str]) -> tuple[list[str], argparse.Namespace]:
    """Return what stands behind --, and what was asked for before it."""
    words = [*argv]
    at = words.index(_APART) if _APART in words else len(words)
    asked = made.parse_args(words[:at])
    for name in ("workers", "steps"):
        if (number := getattr(asked, name, None)) is not None and number < 1:
            made.error(f"--{name} {number}: expected 1 or more")
    return words[at + 1 :], asked


@contextlib.contextmanager
def opened(url: str, options: dict[str, Any]) -> Iterator[Storage]:
    """Give the storage of a run. Raises what it raises."""
    with contextlib.closing(open_storage(url, options, retry_s=_ANSWER_S, answer_s=_ANSWER_S)) as storage:
        yield storage


def newest_launch(storage: Storage, url: str) -> dict[str, Any]:
    """Return the manifest of a run's last launch, which has brought it where it is. Raises CannotReproduce."""
    manifest = files.read_manifest(storage)
    if manifest is None:
        raise CannotReproduce(
            f"no manifest in {redact(url)}\n  next  give the folder or URL that was passed to elastic.Run"
        )
    return [manifest, *files.read_launches(storage, manifest)][-1]


def _reproduce(asked: argparse.Namespace, given: Sequence[str], storage: Storage, options: dict[str, Any]) -> int:
    manifest = newest_launch(storage, asked.run)
    if not (record := read_record(asked.run, options)).steps:
        raise CannotReproduce(f"no step of {redact(asked.run)} is on record: an older elastic-exact made it")
    words = launch.arguments(manifest, given)
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    here = launch.parts_here()
    static = [one for one in differences({part: manifest.get(part) for part in here}, here) if _shown(one)]
    _say_differences(screen, static, "what differs here, known before the launch")
    with (
        tempfile.TemporaryDirectory(prefix="elastic-reproduced-", ignore_cleanup_errors=True) as folder,
        checked_out(manifest, storage, as_it_is=asked.here) as tree,
    ):
        into = asked.into or os.path.join(folder, "run")
        into_options = options if "://" in into else {}
        to = Elsewhere(name=last_part(manifest["run"]["url"]), url=into, steps=asked.steps)
        environ = launch.environment(manifest, tree, to, "elastic.reproduce.observer:observer")
        for words_of in tree.unchecked:
            screen.print(f"not checked: {words_of}", markup=False)
        with launch.interpreter(manifest, storage, make=asked.environment, folder=Path(folder)) as python:
            status = launch.run(
                python, tree, words, environ, launcher=_launcher(manifest, asked.workers), output=sys.stderr
            )
        again = read_record(into, into_options)
        with opened(into, into_options) as there:
            theirs = files.read_manifest(there) or {}
            found = [one for one in differences(manifest, theirs) if _shown(one)]
        verdict = compare(record, again, found, steps=asked.steps)
        if asked.steps is None or verdict.step is not None:
            verdict = verdict.with_tensor(_first_tensor((asked.run, options), (into, into_options), verdict.step))
    if asked.json:
        print(json.dumps({**verdict.document(), "status": status, "not_checked": tree.unchecked, "url": redact(into)}))
    else:
        _say_differences(screen, found, "what differed")
        print("\n".join([*([f"the script ended with status {status}"] if status else []), *verdict.words()]))
    return _EQUAL if verdict.equal and not status else _DIFFERS


def _launcher(manifest: Mapping[str, Any], workers: int | None) -> list[str]:
    """Return the words that launch so many workers: live, as bits do not depend on the launcher. Raises."""
    size = int((manifest.get("launcher") or {}).get("replica_size") or 1)
    count = workers or min(int(manifest["run"]["world_size"]), max(size, os.cpu_count() or 1) // size * size)
    if count % size:
        raise CannotReproduce(
            f"--workers {count}: a replica of this run is of {size} workers, so expected a multiple of {size}"
        )
    flags = [f"--replica-size={size}"] if size > 1 else []
    return ["-m", "elastic", "run", "--standalone", f"--nproc-per-node={count}", *flags]


def _shown(one: Difference) -> bool:
    return one.effect is not Effect.NOT


def _say_differences(screen: Console, found: Sequence[Difference], title: str) -> None:
    if found:
        screen.print(f"{title}:", markup=False)
        screen.print(table(found, ("then", "now")))


def _first_tensor(one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]], step: int | None) -> str | None:
    """Return the first tensor that differs between two checkpoints of one step; None: none does, or there are no two.

    one, other  URLs, with the options of their storages
    step        the first that differs; its first checkpoints are compared. None: the newest ones
    """
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(_checkpoints(*side)) for side in (one, other)]
        known = [{commit.step: commit.id for commit in side.list() if commit.in_lineage} for side in sides]
        both = sorted(known[0].keys() & known[1].keys())
        after = [at for at in both if step is None or at > step]
        if not after:
            return None
        at = after[-1] if step is None else after[0]
        stores = [stack.enter_context(opened(*side)) for side in (one, other)]
        a, b = (Side(storage, ids[at]) for storage, ids in zip(stores, known, strict=True))
        apart = [found for found in compare_checkpoints(a, b).differences if found.elements is not None]
    return f"{apart[0].path}, of {len(apart)} in the checkpoints of step {at}" if apart else None


def _checkpoints(url: str, options: dict[str, Any]) -> elastic_checkpoint.Checkpointer:
    return elastic_checkpoint.Checkpointer(url, storage_options=options or None, retry_s=_ANSWER_S)

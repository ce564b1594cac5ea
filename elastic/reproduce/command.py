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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import elastic_checkpoint
from elastic.config.config import absolute
from elastic.errors import WrittenByNewer
from elastic.manifest import files
from elastic.manifest.command import table
from elastic.manifest.differences import Difference, Effect, differences
from elastic.record import read_record
from elastic.record.reading import FOLDER as RECORD
from elastic.reproduce import launch
from elastic.reproduce.observer import OTHER_RUNS, Elsewhere, last_part
from elastic.reproduce.source_tree import CannotReproduce, checked_out, field_of
from elastic.reproduce.verdict import compare
from elastic_checkpoint import CheckpointError
from elastic_checkpoint.command_line import USAGE, Parser, add_storage_option, storage_options
from elastic_checkpoint.format.names import CLAIMS, COMMITS
from elastic_checkpoint.load.diff import Side
from elastic_checkpoint.load.diff import compare as compare_checkpoints
from elastic_checkpoint.storage import Missing, Storage, open_storage, redact

_EQUAL, _DIFFERS = 0, 1
_ANSWER_S = 30.0
_APART = "--"


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0 only if all is equal, 1 if not, 2 for what cannot be done."""
    return carried_out(parser(), argv, _reproduce)


def parser() -> Parser:
    made = Parser(
        prog="elastic reproduce",
        description="Makes a run again from its manifest, at any number of workers, and compares it step by step with "
        "what the run has on record, which is only read. The script runs in the folder in which it ran, its loggers "
        "write nothing, and other files that it writes are written again.",
        epilog="Exit status: 0 only if every step is equal; 1 one differs or is not on record, or only what was read "
        "can be compared; 2 it cannot be done as asked. What stands behind -- takes the place of the script's "
        "arguments.",
    )
    made.add_argument("run", metavar="RUN", help="the run's folder or URL")
    made.add_argument("--workers", type=int, metavar="N", help="how many make it again (default: as many as it had)")
    made.add_argument(
        "--into", metavar="URL", help="where it is made, with no run there yet (default: a temporary folder)"
    )
    made.add_argument("--steps", type=int, metavar="N", help="only the first N steps")
    made.add_argument("--here", action="store_true", help="with the script as it is here now, and not as it was")
    made.add_argument("--environment", action="store_true", help="install what the run had, by its lock file, beside")
    made.add_argument("--json", action="store_true", help="print the verdict as JSON")
    add_storage_option(made.add_argument)
    return made


def carried_out(
    made: Parser, argv: Sequence[str], act: Callable[[argparse.Namespace, list[str], Storage, dict[str, Any]], int]
) -> int:
    """Do what was asked, with the run's storage open; return the exit status, and say why it cannot be done."""
    given, asked = parsed(made, argv)
    options = storage_options(asked)
    try:
        with launch.ended_by_signals(), opened(asked.run, options) as storage:
            return act(asked, given, storage, options)
    except launch.Ended as ended:
        return ended.status
    except (CannotReproduce, CheckpointError, WrittenByNewer) as refused:
        print(f"{made.prog}: {refused}", file=sys.stderr)
    except (OSError, ValueError, ImportError) as unreadable:
        print(
            f"{made.prog}: {redact(str(unreadable)) or type(unreadable).__name__}\n"
            "  state  the run is as it was\n"
            "  next   see whether its folder or URL can be read from here",
            file=sys.stderr,
        )
    return USAGE


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


def launches(storage: Storage, url: str) -> list[dict[str, Any]]:
    """Return the manifests of a run's launches; the last one has brought it where it is. Raises CannotReproduce."""
    manifest = files.read_manifest(storage)
    if manifest is None:
        damaged = _is_there(storage, files.MANIFEST)
        if damaged:
            found, next = f"{files.MANIFEST} is there, and is no whole manifest", "bring it back from a copy"
        else:
            found, next = "no manifest", "give the folder or URL that was passed to elastic.Run"
        raise CannotReproduce(f"{redact(url)}: {found}", next=next)
    return files.read_launches(storage, manifest) or [manifest]


def _reproduce(asked: argparse.Namespace, given: Sequence[str], storage: Storage, options: dict[str, Any]) -> int:
    made = launches(storage, asked.run)
    manifest = made[-1]
    if asked.into is not None:
        asked.into = absolute(asked.into)  # the script runs in another folder
        _check_free(asked.into, options if "://" in asked.into else {})
    if not (record := read_record(asked.run, options)).steps:
        raise CannotReproduce(
            f"no step of {redact(asked.run)} is on record: its record is gone, or an older elastic-exact made it",
            next="bring back what lay below record/; without it there is nothing to compare with",
        )
    name, words = last_part(field_of(manifest, "run.url", str)), launch.arguments(manifest, given)
    steps = asked.steps or max(record.steps) + 1  # a run that has not come to its end is made so far again
    is_whole = steps >= field_of(manifest, "arguments.resolved.total_steps", int)
    workers, launcher = _launcher(manifest, asked.workers)
    unlike = launch.other_size(record.mode, made, workers)
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
        to = Elsewhere(name=name, url=into, options=into_options or None, steps=None if is_whole else steps)
        environ = launch.environment(manifest, tree, to, "elastic.reproduce.observer:observer")
        tree.unchecked += [*launch.installed_from_folders(manifest, storage), *([unlike] if unlike else [])]
        for words_of in tree.unchecked:
            screen.print(f"not checked: {words_of}", markup=False)
        with launch.interpreter(manifest, storage, make=asked.environment, folder=Path(folder)) as python:
            status = launch.run(python, tree, words, environ, launcher=launcher, output=sys.stderr)
        again = read_record(into, into_options)
        with opened(into, into_options) as there:
            theirs = files.read_manifest(there) or {}
            found = [one for one in differences(manifest, theirs) if _shown(one)]
        verdict = compare(record, again, found, steps=asked.steps, only_read=unlike is not None)
        if not unlike and (asked.steps is None or verdict.step is not None):
            tensors = _first_tensor((asked.run, options), (into, into_options), verdict.step)
            verdict = verdict.with_checkpoints(*tensors)
    if asked.json:
        print(json.dumps({**verdict.document(), "status": status, "not_checked": tree.unchecked, "url": redact(into)}))
    else:
        _say_differences(screen, found, "what differed")
        print("\n".join([*([f"the script ended with status {status}"] if status else []), *verdict.words()]))
    return _EQUAL if verdict.equal and not status else _DIFFERS


def _check_free(into: str, options: dict[str, Any]) -> None:
    """Raise CannotReproduce if a run lies there: its record, or a part of it, would be taken for the new one's."""
    with opened(into, options) as storage:
        for folder in (COMMITS, CLAIMS, RECORD, OTHER_RUNS, files.FOLDER):
            if held := next(iter(storage.list(folder)), None):
                break
        else:
            held = next((key for key in (files.MANIFEST, files.LAUNCHES) if _is_there(storage, key)), None)
    if held is not None:
        raise CannotReproduce(
            f"--into {redact(into)}: a run lies there, as {held} says; expected a place without one",
            next="give another place, or remove what an earlier try has left there",
        )


def _is_there(storage: Storage, key: str) -> bool:
    with contextlib.suppress(Missing):
        storage.size(key)
        return True
    return False


def _launcher(manifest: Mapping[str, Any], workers: int | None) -> tuple[int, list[str]]:
    """Return how many workers make it, and the words that launch them: live, as bits do not depend on it. Raises."""
    size = int((manifest.get("launcher") or {}).get("replica_size") or 1)
    had = field_of(manifest, "run.world_size", int)
    count = workers or min(had, max(size, os.cpu_count() or 1) // size * size)
    if count % size:
        raise CannotReproduce(
            f"--workers {count}: a replica of this run is of {size} workers, so expected a multiple of {size}",
            next=f"--workers {-(-count // size) * size}",
        )
    flags = [f"--replica-size={size}"] if size > 1 else []
    return count, ["-m", "elastic", "run", "--standalone", f"--nproc-per-node={count}", *flags]


def _shown(one: Difference) -> bool:
    return one.effect is not Effect.NOT


def _say_differences(screen: Console, found: Sequence[Difference], title: str) -> None:
    if found:
        screen.print(f"{title}:", markup=False)
        screen.print(table(found, ("then", "now")))


def _first_tensor(
    one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]], step: int | None
) -> tuple[int | None, str | None]:
    """Return a step of which both have a checkpoint, and the first tensor that differs there; None: no step, or tensor.

    one, other  URLs, with the options of their storages
    step        the first that differs; its first checkpoints are compared. None: the newest ones
    """
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(_checkpoints(*side)) for side in (one, other)]
        known = [{commit.step: commit.id for commit in side.list() if commit.in_lineage} for side in sides]
        both = sorted(known[0].keys() & known[1].keys())
        after = [at for at in both if step is None or at > step]
        if not after:
            return None, None
        at = after[-1] if step is None else after[0]
        stores = [stack.enter_context(opened(*side)) for side in (one, other)]
        a, b = (Side(storage, ids[at]) for storage, ids in zip(stores, known, strict=True))
        apart = [found for found in compare_checkpoints(a, b).differences if found.elements is not None]
    return at, f"{apart[0].path}, of {len(apart)} in the checkpoints of step {at}" if apart else None


def _checkpoints(url: str, options: dict[str, Any]) -> elastic_checkpoint.Checkpointer:
    return elastic_checkpoint.Checkpointer(url, storage_options=options or None, retry_s=_ANSWER_S)

"""What each command of `elastic checkpoint` does: asks opened_run.py for a run, and screen.py to show what it found.

Only `export` and `import` load torch, which takes seconds; `diff` does to tell how far apart numbers of 8 bits are.

Each takes what was asked and the screen, and returns its answer as an exit status: YES, NO, or an error that main()
turns into UNKNOWN.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_checkpoint.cli.digests import digests
from elastic_checkpoint.cli.housekeeping import KEEP_ALL, Removal, plan, sweep_as_claimant
from elastic_checkpoint.cli.opened_run import OpenedRun, opened
from elastic_checkpoint.cli.screen import Screen, human_age, human_bytes
from elastic_checkpoint.command_line import storage_options
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.names import CLAIMS
from elastic_checkpoint.load.diff import Comparison, Difference, DifferenceKind, Side, compare
from elastic_checkpoint.runs.claims import utc
from elastic_checkpoint.runs.retention import UNFIT

YES, NO = 0, 1

_SHOWN = 40  # lines of differences
_NOT_VALUES = {
    DifferenceKind.MISSING: "missing in B",
    DifferenceKind.EXTRA: "only in B",
    DifferenceKind.OTHER: "of another kind",
}


def ls(asked: argparse.Namespace, screen: Screen) -> int:
    with _opened(asked.url, asked, screen) as run:
        commits, now_s = run.list(), time.time()
        if asked.json:
            screen.document([_commit_document(commit, now_s) for commit in commits])
        elif commits:
            _show_commits(screen, commits, now_s, long=asked.long)
        run.need(None)
    return YES if any(commit.in_lineage for commit in commits) else NO


def verify(asked: argparse.Namespace, screen: Screen) -> int:
    with _opened(asked.url, asked, screen) as run:
        run.need(asked.step)
        total = sum(commit.bytes for commit in run.list() if asked.step in (None, commit.step))
        with screen.progress("verifying", total) as advance, run.counting(advance):
            found = run.verify(asked.step)
    whole = sum(one.ok for one in found)
    if asked.json:
        keys = ("name", "step", "in_lineage", "ok", "problems")
        screen.document([{key: getattr(one, key) for key in keys} for one in found])
        return YES if whole == len(found) else NO
    for one in found:
        note = "" if one.in_lineage else "  outside the lineage"
        screen.say(f"{'whole' if one.ok else 'DAMAGED'}  step {one.step}  {one.name}{note}", bad=not one.ok)
        for problem in one.problems:
            screen.say("\n".join(f"  {line}" for line in problem.splitlines()))
    screen.say(f"{whole} of {len(found)} whole")
    return YES if whole == len(found) else NO


def show_digest(asked: argparse.Namespace, screen: Screen) -> int:
    with _opened(asked.url, asked, screen) as run:
        stream = run.stream(asked.step)
        with screen.progress("hashing", stream.commit.bytes) as advance, run.counting(advance):
            whole, parts = digests(stream)
    commit = stream.commit
    if asked.json:
        screen.document({"step": commit.step, "name": commit.name, "digest": whole, "parts": parts})
        return YES
    screen.say(f"{whole}  step {commit.step}, everything")
    for name, value in parts.items():
        screen.say(f"{value}  {name}")
    return YES


def diff(asked: argparse.Namespace, screen: Screen) -> int:
    (url_a, step_a), (url_b, step_b) = _two(asked)
    with _opened(url_a, asked, screen) as run_a, _opened(url_b, asked, screen) as run_b:
        a, b = Side(run_a.storage, run_a.find(step_a)), Side(run_b.storage, run_b.find(step_b))
        for part in asked.only:
            if not (a.below([part]) or b.below([part])):
                raise CheckpointError(
                    f"--only {part}: neither checkpoint has anything below it\n"
                    "  next   elastic checkpoint digest URL lists the parts that hold tensors"
                )
        with (
            screen.progress("comparing", a.commit.bytes + b.commit.bytes) as advance,
            run_a.counting(advance),
            run_b.counting(advance),
        ):
            found = compare(a, b, only=asked.only)
        urls = run_a.url, run_b.url
    if asked.json:
        screen.document(_difference_document(urls, (a.commit, b.commit), found))
    else:
        for mark, url, commit in zip("AB", urls, (a.commit, b.commit), strict=True):
            screen.say(f"{mark}  step {commit.step}  {url}")
        _show_differences(screen, found)
    return NO if found.counted else YES


def export(asked: argparse.Namespace, screen: Screen) -> int:
    from elastic_checkpoint.cli.export import (  # only here: it is slow to import
        new_folder,
        select,
        write_dcp,
        write_safetensors,
    )

    with _opened(asked.url, asked, screen) as run:
        run.need(asked.step)
        with new_folder(Path(asked.out)) as folder:
            stream = run.stream(asked.step)
            commit = stream.commit
            parts = select(stream, asked.part or ["model"], f"checkpoint step {commit.step} in {run.url}")
            with screen.progress("writing", commit.bytes) as advance, run.counting(advance):
                if asked.to == "dcp":
                    written = write_dcp(stream, parts, folder)
                else:
                    written = write_safetensors(stream, parts, folder, max_shard_bytes=asked.max_shard_size)
    if asked.json:
        facts = {"step": commit.step, "name": commit.name, "format": asked.to, "out": asked.out}
        screen.document(facts | vars(written))
        return YES
    size = human_bytes(sum(written.files.values()))
    screen.say(f"step {commit.step} -> {asked.out}")
    screen.say(f"{_count(written.tensors, 'tensor')}, {_count(len(written.files), 'file')}, {size}")
    _say_tied(screen, written.tied, ", and not written again")
    _warn_of_left_out(screen, written.left_out, f"{asked.to} cannot hold it")
    return YES


def import_(asked: argparse.Namespace, screen: Screen) -> int:
    from elastic_checkpoint.checkpointer import Checkpointer  # only here, as in export
    from elastic_checkpoint.cli.importing import JOB, import_state
    from elastic_checkpoint.sources.find import open_source

    source = open_source(asked.source, asked.form)
    origin = Path(asked.source).name
    with (
        _opened(asked.url, asked, screen) as run,
        Checkpointer(run.storage, retry_s=asked.retry_s, log=screen.warn, job=JOB) as holder,
    ):
        done = import_state(
            run,
            holder,
            source,
            step=asked.step,
            part=asked.part,
            supersede=asked.supersede,
            screen=screen,
            origin=origin,
        )
        url = run.url
    commit = done.commit
    if asked.json:
        facts = {"step": commit.step, "name": commit.name, "format": source.form, "url": url, "bytes": commit.bytes}
        found = {"parts": done.parts, "tensors": done.tensors, "tied": source.tied, "left_out": source.left_out}
        screen.document(facts | found)
        return YES
    screen.say(f"{asked.source} ({source.form}) -> step {commit.step} of {url}")
    screen.say(f"{', '.join(done.parts)}: {_count(done.tensors, 'tensor')}, {human_bytes(commit.bytes)}")
    _say_tied(screen, source.tied)
    _warn_of_left_out(screen, source.left_out, "the index does not name them")
    return YES


def sweep(asked: argparse.Namespace, screen: Screen) -> int:
    keep = KEEP_ALL if asked.keep is None else asked.keep
    removed: list[str] = []
    with _opened(asked.url, asked, screen) as run:
        if not run.commits and not run.storage.list(CLAIMS):
            raise run.nothing_here()
        with screen.progress("verifying", None) as advance, run.counting(advance):
            if asked.dry_run:
                planned = plan(
                    run.storage, screen.warn, keep=keep, keep_every=asked.keep_every, orphan_grace_s=asked.grace_s
                )
            else:
                planned, removed = sweep_as_claimant(
                    run.storage,
                    screen.warn,
                    keep=keep,
                    keep_every=asked.keep_every,
                    orphan_grace_s=asked.grace_s,
                    insist=asked.take_over,
                    deadline_s=asked.retry_s,
                )
    remaining = [] if asked.dry_run else [one.name for one in planned if one.name not in removed]
    if asked.json:
        document = {"dry_run": asked.dry_run, "planned": [vars(one) for one in planned], "removed": removed}
        screen.document(document | {"left": remaining})
    else:
        _show_sweep(screen, planned, removed, dry_run=asked.dry_run)
    return NO if remaining else YES


COMMANDS: dict[str, Callable[[argparse.Namespace, Screen], int]] = {
    "ls": ls,
    "verify": verify,
    "digest": show_digest,
    "diff": diff,
    "export": export,
    "import": import_,
    "sweep": sweep,
}


@contextlib.contextmanager
def _opened(url: str, asked: argparse.Namespace, screen: Screen) -> Iterator[OpenedRun]:
    with opened(url, storage_options(asked), retry_s=asked.retry_s, screen=screen) as run:
        yield run


def _two(asked: argparse.Namespace) -> tuple[tuple[str, int | None], tuple[str, int | None]]:
    """The two (URL, step) to compare: `A[@STEP] B[@STEP]`, or `URL STEP STEP`."""
    if asked.c is None:
        return _with_step(asked.a), _with_step(asked.b)
    if not asked.b.isdecimal():
        raise CheckpointError(
            "three arguments are a URL and two steps, but the second is no number\n"
            "  next   elastic checkpoint diff URL 1100 1200, or elastic checkpoint diff URL_A@1100 URL_B@1200"
        )
    return (asked.a, int(asked.b)), (asked.a, asked.c)


def _with_step(text: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.+)@(\d+)", text, re.DOTALL)
    return (found[1], int(found[2])) if found else (text, None)


def _show_commits(screen: Screen, commits: Sequence[Commit], now_s: float, *, long: bool) -> None:
    header = ["step", "size", "age", "workers", "claim", "lineage"]
    rows = [
        [
            str(commit.step),
            human_bytes(commit.bytes),
            human_age(now_s - commit.saved_at),
            str(_world_size(commit) or "-"),
            str(commit.claim),
            ("yes" if commit.in_lineage else "no, never loaded") + (", not finite" if UNFIT in commit.meta else ""),
        ]
        for commit in commits
    ]
    if long:
        header += ["saved (UTC)", "objects", "name"]
        rows = [
            [*row, utc(commit.saved_at), str(commit.objects), commit.name]
            for row, commit in zip(rows, commits, strict=True)
        ]
    screen.table([header, *rows])


def _commit_document(commit: Commit, now_s: float) -> dict[str, Any]:
    keys = ("name", "claim", "step", "nonce", "saved_at", "objects", "bytes", "in_lineage", "meta")
    facts = {"age_s": now_s - commit.saved_at, "world_size": _world_size(commit)}
    return {key: getattr(commit, key) for key in keys} | facts


def _world_size(commit: Commit) -> int | None:
    """How many workers saved it, where they said so."""
    size = commit.meta.get("world_size")
    return size if type(size) is int and 0 < size < 10**7 else None


def _say_tied(screen: Screen, tied: Mapping[str, str], note: str = "") -> None:
    for name, kept in tied.items():
        screen.say(f"tied: {name} is {kept}{note}")


def _warn_of_left_out(screen: Screen, names: Sequence[str], why: str) -> None:
    if names:
        screen.warn(f"left out, since {why}: {', '.join(names[:_SHOWN])}")


def _show_differences(screen: Screen, found: Comparison) -> None:
    shown = found.differences[:_SHOWN]
    if shown:
        screen.table([[one.kind, one.path, _difference(one)] for one in shown])
    if len(found.differences) > _SHOWN:
        screen.say(f"... and {len(found.differences) - _SHOWN} more; --json lists all")
    kinds = [one.kind for one in found.counted]
    counts = ", ".join(f"{kinds.count(kind)} {what}" for kind, what in _NOT_VALUES.items() if kind in kinds)
    differing = f"{kinds.count(DifferenceKind.VALUE)} differ" + (f", {counts}" if counts else "")
    equal = f"{_count(found.equal_tensors, 'tensor')} and {_count(found.equal_values, 'value')} equal"
    places = len(found.differences) - len(kinds)
    but = f"; {places} differ in an absolute path or a URL, which does not count" if places else ""
    screen.say((f"{differing}; {equal}" if kinds else equal) + but)


def _difference(one: Difference) -> str:
    if one.kind == DifferenceKind.MISSING:
        return f"{one.a} / -"
    if one.kind == DifferenceKind.EXTRA:
        return f"- / {one.b}"
    if one.elements is None:
        return f"{one.a} / {one.b}"
    by = "" if one.largest is None else f", by up to {one.largest:.3g}"
    odd = f", {one.nonfinite} of them NaN or infinite" if one.nonfinite else ""
    return f"{one.differing} of {one.elements} differ{by}{odd}"


def _difference_document(urls: tuple[str, str], commits: tuple[Commit, Commit], found: Comparison) -> dict[str, Any]:
    sides = {
        mark: {"url": url, "step": commit.step, "name": commit.name}
        for mark, url, commit in zip("ab", urls, commits, strict=True)
    }
    return {
        **sides,
        "equal": not found.counted,
        "equal_tensors": found.equal_tensors,
        "equal_values": found.equal_values,
        "differences": [vars(one) for one in found.differences],
    }


def _show_sweep(screen: Screen, planned: Sequence[Removal], removed: Sequence[str], *, dry_run: bool) -> None:
    names = {one.name for one in planned}
    gone = [one for one in planned if dry_run or one.name in removed]
    if gone:
        rows = [[str(one.step), human_bytes(one.bytes), one.why, one.name] for one in gone]
        screen.table([["step", "size", "why", "name"], *rows])
    others = [name for name in removed if name not in names]
    for name in others:
        screen.say(f"also removed: {name}")
    what = f"{_count(len(gone), 'save')}, {human_bytes(sum(one.bytes for one in gone))}"
    screen.say(f"{'would remove' if dry_run else 'removed'} {what}" if gone or others else "nothing to remove")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

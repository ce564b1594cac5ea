"""What each command of `elastic checkpoint` does: asks opened_run.py for a run, and screen.py to show what it found.

Only `export` and `import` load torch, which takes seconds; `diff` does to tell how far apart numbers of 8 bits are.

Each takes what was asked and the screen, and returns its answer as an exit status: YES, NO, or an error that main()
turns into UNKNOWN.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_checkpoint.cli.comparisons import diff, show_digest
from elastic_checkpoint.cli.housekeeping import KEEP_ALL, Removal, plan, sweep_as_claimant, sweeper
from elastic_checkpoint.cli.opened_run import asked_run
from elastic_checkpoint.cli.screen import Screen, counted, human_age, human_bytes
from elastic_checkpoint.cli.usage import NO, YES
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.names import CLAIMS
from elastic_checkpoint.runs.claim_record import utc
from elastic_checkpoint.runs.retention import UNFIT

_SHOWN = 40  # names of what was left out


def ls(asked: argparse.Namespace, screen: Screen) -> int:
    with asked_run(asked.url, asked, screen) as run:
        commits, now_s = run.list(), time.time()
        if asked.json:
            screen.document([_commit_document(commit, now_s) for commit in commits])
        elif commits:
            _show_commits(screen, commits, now_s, long=asked.long)
        run.need(None)
    return YES if any(commit.in_lineage for commit in commits) else NO


def verify(asked: argparse.Namespace, screen: Screen) -> int:
    with asked_run(asked.url, asked, screen) as run:
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


def export(asked: argparse.Namespace, screen: Screen) -> int:
    from elastic_checkpoint.cli.export import select, write_dcp, write_safetensors
    from elastic_checkpoint.cli.new_folder import new_folder

    with asked_run(asked.url, asked, screen) as run:
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
    screen.say(f"{counted(written.tensors, 'tensor')}, {counted(len(written.files), 'file')}, {size}")
    _say_tied(screen, written.tied, ", and not written again")
    _warn_of_left_out(screen, written.left_out, f"{asked.to} cannot hold it")
    return YES


def sweep(asked: argparse.Namespace, screen: Screen) -> int:
    keep = KEEP_ALL if asked.keep is None else asked.keep
    removed: list[str] = []
    with asked_run(asked.url, asked, screen) as run:
        if not run.commits and not run.storage.list(CLAIMS):
            raise run.nothing_here()
        with screen.progress("verifying", None) as advance, run.counting(advance):
            if asked.dry_run:
                of_run = run.storage, screen.warn
                planned = plan(
                    *of_run, sweeper(*of_run, keep=keep, keep_every=asked.keep_every, orphan_grace_s=asked.grace_s)
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
    "sweep": sweep,
}


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
    """Return how many workers saved it, where they said so."""
    size = commit.meta.get("world_size")
    return size if type(size) is int and 0 < size < 10**7 else None


def _say_tied(screen: Screen, tied: Mapping[str, str], note: str = "") -> None:
    for name, kept in tied.items():
        screen.say(f"tied: {name} is {kept}{note}")


def _warn_of_left_out(screen: Screen, names: Sequence[str], why: str) -> None:
    if names:
        screen.warn(f"left out, since {why}: {', '.join(names[:_SHOWN])}")


def _show_sweep(screen: Screen, planned: Sequence[Removal], removed: Sequence[str], *, dry_run: bool) -> None:
    names = {one.name for one in planned}
    gone = [one for one in planned if dry_run or one.name in removed]
    if gone:
        rows = [[str(one.step), human_bytes(one.bytes), one.why, one.name] for one in gone]
        screen.table([["step", "size", "why", "name"], *rows])
    others = [name for name in removed if name not in names]
    for name in others:
        screen.say(f"also removed: {name}")
    what = f"{counted(len(gone), 'save')}, {human_bytes(sum(one.bytes for one in gone))}"
    screen.say(f"{'would remove' if dry_run else 'removed'} {what}" if gone or others else "nothing to remove")

"""The command `checkpoint`: what lies at a URL, whether it is whole, and what it is. Reads only; claims nothing.

    checkpoint ls URL                  the commits, newest first, and which are outside the lineage
    checkpoint verify URL [--step N]   reads every byte
    checkpoint digest URL [--step N]   SHA-256 of the state's tensors, and of each part of it

Exit status: 0 all is well; 1 nothing is there, or something is damaged; 2 it could not be found out (usage, storage).
With --json, one JSON document goes to standard output. Reasons go to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from checkpoint.checkpointer import Checkpointer
from checkpoint.errors import CheckpointError, CorruptCheckpoint, NoCheckpoint
from checkpoint.hashing import digest
from checkpoint.manifest import Commit
from checkpoint.tree import walk_tensors

OK, NOT_WELL, UNKNOWN = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    asked = _parser().parse_args(arguments)
    width = None if sys.stdout.isatty() else 160
    out, err = (
        Console(soft_wrap=True, highlight=False, width=width),
        Console(stderr=True, soft_wrap=True, highlight=False),
    )

    def log(line: str) -> None:
        err.print(line, style="yellow", markup=False)

    try:
        with Checkpointer(
            asked.url, storage_options=dict(asked.storage_option), retry_s=asked.retry_s, log=log
        ) as runs:
            status: int = asked.run(runs, asked, out)
            return status
    except (NoCheckpoint, CorruptCheckpoint) as error:
        err.print(f"{type(error).__name__}: {error}", style="red", markup=False)
        return NOT_WELL
    except CheckpointError as error:
        err.print(f"{type(error).__name__}: {error}", style="red", markup=False)
        return UNKNOWN


def ls(runs: Checkpointer, asked: argparse.Namespace, out: Console) -> int:
    commits = runs.list()
    if asked.json:
        print(json.dumps([_document(commit) for commit in commits]))
    else:
        table = Table("step", "claim", "saved (UTC)", "objects", "size", "name", "", box=None, pad_edge=False)
        table.columns[5].overflow = "fold"  # a name that is cut short cannot be copied
        for commit in commits:
            saved = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(commit.saved_at))
            note = "" if commit.in_lineage else "outside the lineage, never chosen"
            size = human_bytes(commit.bytes)
            table.add_row(str(commit.step), str(commit.claim), saved, str(commit.objects), size, commit.name, note)
        out.print(table if commits else "no checkpoint")
    return OK if any(commit.in_lineage for commit in commits) else NOT_WELL


def verify(runs: Checkpointer, asked: argparse.Namespace, out: Console) -> int:
    found = runs.verify(step=asked.step)
    if asked.json:
        keys = ("name", "step", "in_lineage", "ok", "problems")
        print(json.dumps([{key: getattr(one, key) for key in keys} for one in found]))
    else:
        for one in found:
            out.print(f"{one.name}  {'whole' if one.ok else 'DAMAGED'}", style=None if one.ok else "red", markup=False)
            for problem in one.problems:
                out.print(problem, markup=False)
        out.print(f"{sum(one.ok for one in found)} of {len(found)} whole")
    return OK if found and all(one.ok for one in found) else NOT_WELL


def show_digest(runs: Checkpointer, asked: argparse.Namespace, out: Console) -> int:
    checkpoint = runs.read(step=asked.step)
    parts = {}
    if isinstance(checkpoint.tree, dict):
        parts = {
            str(name): digest(part)
            for name, part in checkpoint.tree.items()
            if isinstance(part, dict) and any(True for _ in walk_tensors(part))
        }
    whole = digest(checkpoint.tree)
    if asked.json:
        document = {"step": checkpoint.step, "name": checkpoint.commit.name, "digest": whole, "parts": parts}
        print(json.dumps(document))
    else:
        out.print(f"{whole}  step {checkpoint.step}, everything", markup=False)
        for name, value in parts.items():
            out.print(f"{value}  {name}", markup=False)
    return OK


def human_bytes(count: int) -> str:
    """Three digits and a unit: `1.21 GB`, in powers of 1000."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"


def _document(commit: Commit) -> dict[str, Any]:
    keys = ("name", "claim", "step", "nonce", "saved_at", "objects", "bytes", "in_lineage")
    return {key: getattr(commit, key) for key in keys} | {"meta": json.loads(json.dumps(commit.meta, default=repr))}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="checkpoint", description="Looks at the checkpoints of a run. Changes nothing."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, run, summary in (
        ("ls", ls, "list the commits, newest first"),
        ("verify", verify, "read every byte and say what is damaged"),
        ("digest", show_digest, "SHA-256 of the tensors, and of each part of the state"),
    ):
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(run=run, step=None)
        command.add_argument("url", metavar="URL", help="a folder or any fsspec URL")
        command.add_argument("--json", action="store_true", help="print one JSON document")
        if run is not ls:
            command.add_argument("--step", type=int, help="only this step (default: all, or the newest whole one)")
        command.add_argument(
            "--storage-option",
            type=_option,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="for fsspec's filesystem, such as endpoint_url=http://...; credentials belong in the environment",
        )
        command.add_argument("--retry-s", type=float, default=30.0, help="how long a failing storage is tried again")
    return parser


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value

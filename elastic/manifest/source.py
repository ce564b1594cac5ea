"""The script, and the repository that it lies in: its commit, and what differs from it. A slow git is given up."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LARGEST = 1 << 20  # bytes, of a diff or a script that is kept
GIT_S = 10.0  # for all that git is asked
_UNTRACKED_MAX = 100
_LOOK_S = 0.01
# No lock, no hook, no daemon, no program of the user's that shows differences: git only reads here.
_GIT = ("git", "--no-optional-locks", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_DIFF = ("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv")


class Unknown(Exception):
    """It cannot be had; the message says why."""


def script(argv: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """Return what is known of the script of this process, and its text. Raises Unknown. argv: as the script sees it."""
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None:
        raise Unknown("python has no script: it was started interactively, or by -c")
    path = os.path.abspath(file)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise Unknown(f"{path}: {error.strerror}") from None
    found = {
        "path": path,
        "sha256": hashlib.sha256(text).hexdigest(),
        "module": spec.name if spec is not None else None,
        "arguments": list(argv[1:]),
        "folder": os.getcwd(),
    }
    return found, text


def repository(script: Path, hurry: threading.Event) -> tuple[dict[str, Any], bytes | None]:
    """Return what git says of the script's repository, and what differs from the commit; None: nothing does.

    hurry  is set once nobody waits for git any more

    Raises Unknown.
    """
    until_s = time.monotonic() + GIT_S

    def git(*arguments: str, largest: int = 16 * LARGEST) -> bytes:
        return _output([*_GIT, "-C", str(script.parent), *arguments], until_s, hurry, largest)

    root = git("rev-parse", "--show-toplevel").decode(errors="replace").rstrip("\n")
    said = git("status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z").decode(errors="replace")
    lines = said.split("\0")
    head = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = head.get("branch.oid"), head.get("branch.head")
    dirty = any(line.startswith(("1 ", "2 ", "u ")) for line in lines)
    remote: str | None = None
    with contextlib.suppress(Unknown):  # there is none
        remote = git("config", "--get", "remote.origin.url").decode(errors="replace").strip()
    inside = script.is_relative_to(root)
    found = {
        "root": root,
        "script": str(script.relative_to(root)) if inside else None,
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "remote": remote,
        "dirty": dirty,
        "untracked": [line[2:] for line in lines if line.startswith("? ")][:_UNTRACKED_MAX],
    }
    return found, git(*_DIFF, largest=LARGEST + 1) if dirty and found["commit"] else None


def _output(command: Sequence[str], until_s: float, hurry: threading.Event, largest: int) -> bytes:
    """Return what a command prints, `largest` bytes at most. Raises Unknown where it fails, or takes too long."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            raise Unknown(f"there is no git here: {error.strerror}") from None
        try:
            while process.poll() is None and os.fstat(out.fileno()).st_size < largest:
                if hurry.wait(_LOOK_S):
                    raise Unknown("the launch ended before git had answered")
                if time.monotonic() > until_s:
                    raise Unknown(f"git had not answered after {GIT_S:g} s")
        finally:
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk
                    process.wait(1.0)
        if process.returncode > 0:
            err.seek(0)
            said = err.read(1000).decode(errors="replace").strip().splitlines()
            raise Unknown(f"git: {said[0]}" if said else f"git ended with {process.returncode}")
        out.seek(0)
        return out.read(largest)

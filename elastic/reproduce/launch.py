"""Launches a run's script again: with its arguments and the variables that decide bits, elsewhere, at any size.

A variable that is set here stands as it is, and shows in the table of what differs; one that is not set here gets the
value that the run had.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import elastic
import elastic_checkpoint
from elastic.manifest import machine, packages
from elastic.reproduce.observer import Elsewhere
from elastic.reproduce.source_tree import CannotReproduce, SourceTree, field_of, moved_path
from elastic_checkpoint import linux
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded

# What a process is given by its surroundings, and not by who has launched the run.
_NOT_TAKEN = (
    "LD_",
    "PYTHONPATH",
    "PYTHONHOME",
    "TRITON_CACHE",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "LANG",
    "LC_",
)
_REMOVED = "***"  # in place of a secret
_LOCK_MAX = 4 << 20
_OF_FOLDER = re.compile(r"^# (\S+) was installed from (.+)$", re.MULTILINE)  # as manifest/packages.py writes it
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 10.0


class Ended(BaseException):
    """A signal has come that ends this command; what it has begun here is taken back on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise Ended inside the block; what is ignored, as nohup has it, stays ignored."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for one in before:
            signal.signal(one, signal.SIG_IGN)  # a second one would cut the way out short
        raise Ended(number)

    before = {one: was for one in _ENDS if (was := signal.getsignal(one)) != signal.SIG_IGN}
    for one in before:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one, was in before.items():
            signal.signal(one, was)


def parts_here() -> dict[str, Any]:
    """Return the parts of a manifest that are known here without a launch."""
    return {
        "python": machine.python({"PYTHONHASHSEED": "0", **os.environ}),  # as `elastic run` has it
        "torch": machine.torch_build(),
        "machine": machine.machine(),
        "packages": {"versions": packages.lock()[1]},
    }


def arguments(manifest: Mapping[str, Any], given: Sequence[str]) -> list[str]:
    """Return the script's arguments; given: in their place. Raises CannotReproduce where a secret was removed."""
    found = [*given] or list(map(str, field_of(manifest, "script.arguments", list)))
    if any(_REMOVED in one for one in found):
        raise CannotReproduce(
            f"an argument of the script held a secret, which no manifest keeps\n  found  {' '.join(found)}",
            next="give all of its arguments behind --: elastic reproduce RUN -- ARGUMENTS",
        )
    return found


def installed_from_folders(manifest: Mapping[str, Any], storage: Storage) -> list[str]:
    """Return, in words, what the run had installed from folders, editable or not: no version tells what is in those.

    Raises what the storage raises.
    """
    lock = (manifest.get("packages") or {}).get("lock")
    text = ""
    with contextlib.suppress(Missing, TooLarge):
        text = bytes(get_bounded(storage, lock["file"], _LOCK_MAX)).decode(errors="replace") if lock else ""
    return [
        f"{name} was installed from {url}, and is taken as it is here now" for name, url in _OF_FOLDER.findall(text)
    ]


def other_size(mode: str, launches: Sequence[Mapping[str, Any]], workers: int) -> str | None:
    """Return, in words, what of a run in fast mode is not compared with so many workers; None: all of it is."""
    had = sorted({field_of(one, "run.world_size", int) for one in launches})
    if mode != "fast" or had == [workers]:
        return None
    return f"what is computed: in fast mode {workers} workers give other bits than {' and '.join(map(str, had))}"


def environment(manifest: Mapping[str, Any], tree: SourceTree, to: Elsewhere, observer: str) -> dict[str, str]:
    """Return the environment of a launch."""
    had = manifest.get("environment") or {}
    taken = {
        name: value
        for name, value in had.items()
        if not name.startswith((*_NOT_TAKEN, "ELASTIC_")) and _REMOVED not in value and name not in os.environ
    }
    root = (manifest.get("git") or {}).get("root")
    path = os.environ.get("PYTHONPATH") or had.get("PYTHONPATH") or ""
    moved = {"PYTHONPATH": moved_path(path, root, tree.root)} if path else {}
    return {**os.environ, **taken, **moved, **to.environment(observer)}


@contextlib.contextmanager
def interpreter(manifest: Mapping[str, Any], storage: Storage, *, make: bool, folder: Path) -> Iterator[str]:
    """Give the python that runs the script. make: in an environment of its own, made of the manifest's lock file.

    Raises CannotReproduce, and what the storage raises.
    """
    if not make:
        yield sys.executable
        return
    file = folder / "requirements.txt"
    file.write_bytes(bytes(get_bounded(storage, field_of(manifest, "packages.lock.file", str), _LOCK_MAX)))
    made = folder / "environment"
    python = made / "bin" / "python"
    steps = [
        [sys.executable, "-m", "venv", str(made)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(file)],
    ]
    for command in steps:
        if subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode:
            raise CannotReproduce(
                f"--environment: {' '.join(command[1:4])} failed, as it says above",
                next="leave out --environment, or tell pip where to find what it lacks: PIP_EXTRA_INDEX_URL",
            )
    # What was installed from a folder is a comment in a lock file, as this project is where it was cloned.
    sources = {str(Path(package.__file__ or "").parents[1]) for package in (elastic, elastic_checkpoint)}
    (site,) = made.glob("lib/python3*/site-packages")
    (site / "elastic-reproduce.pth").write_text("".join(f"{source}\n" for source in sorted(sources)))
    yield str(python)


def run(
    python: str,
    tree: SourceTree,
    script_arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    launcher: Sequence[str] = (),
    output: TextIO | None = None,
) -> int:
    """Run the script to its end; return the exit status. launcher: words between python and the script.

    It ends with this process, whatever ends that.
    """
    command = [python, *launcher, *tree.script, *script_arguments]
    with_this = partial(linux.signal_at_parents_end, signal.SIGTERM)  # a SIGKILL runs no `finally`
    with subprocess.Popen(
        command,
        cwd=tree.folder,
        env=dict(environ),
        stdout=output,
        preexec_fn=with_this,  # noqa: PLW1509  one system call, which takes no lock that a thread may hold
    ) as process:
        try:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # it has got the signal, too, and saves what it holds
                    continue
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()

"""Puts a run's script where it can be run again: its repository at its commit, with what differed from that.

    the commit is in a repository here   a worktree of it, with the manifest's diff applied
    else                                 the one file that the manifest keeps, and what lay beside it is not known

What cannot be had as it was is said (`unchecked`), and nothing else changes here: the worktree is a temporary one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded

_GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
_LARGEST = 4 << 20
_GIT_S = 120.0


UNTOUCHED = "nothing was launched, and the run is as it was"


class CannotReproduce(Exception):
    """The run cannot be launched again: what was found, in which state all is left, and what to do next."""

    def __init__(self, found: str, *, next: str, state: str = UNTOUCHED) -> None:
        super().__init__(f"{found}\n  state  {state}\n  next   {next}")


class _GitFailed(Exception):
    """Git is not here, or has refused; the message says how."""


Kind = TypeVar("Kind")


def field_of(manifest: Mapping[str, Any], path: str, kind: type[Kind]) -> Kind:
    """Return a field of a manifest; path: with a dot between its names. Raises CannotReproduce where it has none."""
    found: Any = manifest
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, kind):
        return found
    part = path.partition(".")[0]
    why = (manifest.get("absent") or {}).get(part)
    why = why or ("it is damaged" if part in manifest else "it is of an older elastic-exact, or damaged")
    raise CannotReproduce(f"the manifest has no {path}: {why}", next="see what it has: elastic manifest RUN")


@dataclass
class SourceTree:
    """A script, ready to be run.

    script     the words that name it to python: its path, or -m and its module's name
    folder     in which it is to be run
    root       of the worktree; None: there is none
    unchecked  what may be other than it was, in words
    """

    script: list[str]
    folder: Path
    root: Path | None = None
    unchecked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def checked_out(manifest: Mapping[str, Any], storage: Storage, *, as_it_is: bool = False) -> Iterator[SourceTree]:
    """Give the script of a launch, for as long as the block lasts. as_it_is: where it lay, whatever it is by now.

    Raises CannotReproduce, and what the storage raises.
    """
    for name in ("path", "folder", "sha256"):
        field_of(manifest, f"script.{name}", str)
    script = manifest["script"]
    with tempfile.TemporaryDirectory(prefix="elastic-reproduce-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if as_it_is:
            tree = _here(script)
        else:
            found = _worktree(manifest, storage, folder, stack)
            tree = _copy(manifest, storage, folder, why=found) if isinstance(found, str) else found
        if not tree.folder.is_dir():
            tree.unchecked.append(f"{tree.folder}, in which it ran, is not here: it runs in {os.getcwd()}")
            tree.folder = Path.cwd()
        yield tree


def _worktree(
    manifest: Mapping[str, Any], storage: Storage, folder: Path, stack: contextlib.ExitStack
) -> SourceTree | str:
    """Return the script in a worktree of its commit, or why there is none, in words."""
    git, script = manifest.get("git") or {}, manifest["script"]
    commit, root = git.get("commit"), str(git.get("root"))
    if not commit or not git.get("script"):
        return "it was in no commit"
    repository = next((one for one in (root, os.getcwd()) if _has(one, commit)), None)
    if repository is None:
        return f"commit {commit} is in no repository here"
    at = folder / "tree"
    stack.callback(_remove, repository, at)  # first: a signal may come while git works
    try:
        _git(repository, "worktree", "add", "--detach", "--quiet", "--force", str(at), commit)
    except _GitFailed as failed:  # in a repository that nobody may write to
        return f"commit {commit} cannot be checked out here ({failed})"
    unchecked = []
    if (changes := git.get("diff")) is not None:
        if changes.get("altered") or not changes.get("whole", True):
            what = "a secret was removed from" if changes.get("altered") else "only a part was kept of"
            unchecked.append(f"what differed from the commit: {what} it")
        file = folder / "changes.diff"
        file.write_bytes(bytes(get_bounded(storage, changes["file"], _LARGEST)))
        try:
            _git(str(at), "apply", "--binary", "--whitespace=nowarn", str(file))
        except _GitFailed as failed:
            unchecked.append(f"what differed from the commit cannot be applied: {failed}")
    for name in git.get("untracked") or ():
        there, here = Path(root, name), at / name
        if there.exists() and not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(there)
            unchecked.append(f"{name} is in no commit, and taken as it is now")
        elif not there.exists():
            unchecked.append(f"{name} is in no commit, and not here")
    path = at / git["script"]
    if not path.is_file():
        return f"commit {commit} is here, and git does not track {git['script']} in it"
    if hashlib.sha256(path.read_bytes()).hexdigest() != script["sha256"]:
        unchecked.append(f"{git['script']} is not what it was: its hash is another one")
    ran_in = Path(script["folder"])
    if script.get("module"):  # python finds it from the folder in which it is run
        return SourceTree(["-m", script["module"]], _moved(ran_in, root, at) or at, at, unchecked)
    return SourceTree([str(path)], ran_in, at, unchecked)


def _copy(manifest: Mapping[str, Any], storage: Storage, folder: Path, *, why: str) -> SourceTree:
    """Return the script as the manifest keeps it. why: no worktree has it, in words."""
    script = manifest["script"]
    copy, name = script.get("copy") or {}, Path(script["path"]).name
    try:
        text = bytes(get_bounded(storage, copy["file"], _LARGEST))
    except (KeyError, Missing, TooLarge) as none:
        raise CannotReproduce(
            f"no repository here has the script ({why}), and the manifest keeps no copy of it: {none}",
            next="call this command inside a clone of its repository",
        ) from None
    path = folder / name
    path.write_bytes(text)
    unchecked = [
        f"{why}: {name} is the copy that the manifest keeps, and what it imports from beside it is not checked"
    ]
    if hashlib.sha256(text).hexdigest() != script["sha256"]:
        unchecked.append("the copy is not whole, or a secret was removed from it")
    beside = Path(script["path"]).parent
    if beside.is_dir():  # modules beside it, as they are now
        for one in beside.iterdir():
            if not (folder / one.name).exists():
                (folder / one.name).symlink_to(one)
    return SourceTree([str(path)], Path(script["folder"]), None, unchecked)


def _here(script: Mapping[str, Any]) -> SourceTree:
    """Return the script as it lies where it was launched."""
    words = ["-m", script["module"]] if script.get("module") else [script["path"]]
    if not Path(script["path"]).is_file():
        raise CannotReproduce(f"--here: {script['path']} is not here", next="leave out --here, or put it there")
    return SourceTree(words, Path(script["folder"]))


def moved_path(variable: str, root: str | None, at: Path | None) -> str:
    """Return PYTHONPATH with what lies below a repository's root as it lies in the worktree."""
    if root is None or at is None:
        return variable
    parts = [str(_moved(Path(one), root, at) or one) if one else one for one in variable.split(os.pathsep)]
    return os.pathsep.join(parts)


def _moved(path: Path, root: str, at: Path) -> Path | None:
    """Return a path below the repository's root as it lies in the worktree; None: it is not below it."""
    return at / path.relative_to(root) if path.is_relative_to(root) else None


def _has(repository: str, commit: str) -> bool:
    with contextlib.suppress(_GitFailed):
        _git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
        return True
    return False


def _remove(repository: str, at: Path) -> None:
    with contextlib.suppress(_GitFailed):
        _git(repository, "worktree", "remove", "--force", "--force", str(at))  # locked, too: git was ended in it


def _git(repository: str, *words: str) -> str:
    """Return what git says. Raises _GitFailed."""
    try:
        done = subprocess.run(
            [*_GIT, "-C", repository, *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise _GitFailed(f"git: {failed}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise _GitFailed(f"git {words[0]}: {said[-1] if said else done.returncode}")
    return done.stdout

"""A URL that a person gave, opened for reading: either there is a run, or one error says what there is instead."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from elastic_checkpoint.cli.screen import Advance, Screen
from elastic_checkpoint.command_line import storage_options
from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint, NoCheckpoint
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.names import COMMITS, DATA, CommitId, commit_id
from elastic_checkpoint.load.integrity import Search, Verified, none_whole, verify
from elastic_checkpoint.load.stream import Stream
from elastic_checkpoint.runs.history import History, list_commits, read_history, read_manifest
from elastic_checkpoint.storage import Buffer, Storage, open_storage
from elastic_checkpoint.storage.redact import Scrubber, redact
from elastic_checkpoint.storage.urls import EXPECTED, Refusal, refusal

_SHOWN = 5  # names in an error
ANSWER_S = 30.0  # to whoever waits at a terminal


class BadUrl(CheckpointError):
    """Nothing can be found out about this URL until the person changes it, or their rights or options."""


@contextlib.contextmanager
def opened(url: str, options: dict[str, Any], *, retry_s: float, screen: Screen) -> Iterator[OpenedRun]:
    """Return what lies at `url`, for as long as the block lasts. Raises `BadUrl`, `StorageError`."""
    _check(url, options)
    inner = open_storage(url, options, retry_s=retry_s, answer_s=max(ANSWER_S, retry_s))
    try:
        try:
            keys = inner.list(COMMITS)
        except CheckpointError:
            raise
        except Exception as error:  # a filesystem refuses its options or its URL as it likes
            why = Scrubber(url, options)(f"{type(error).__name__}: {error}")
            raise _bad(url, f"its filesystem refuses it: {why}", "correct the URL and each --storage-option") from None
        commits = tuple(id for key in keys if (id := commit_id(key)) is not None)
        yield OpenedRun(url, WatchedStorage(inner), commits, screen)
    finally:
        inner.close()


def asked_run(url: str, asked: argparse.Namespace, screen: Screen) -> contextlib.AbstractContextManager[OpenedRun]:
    """Return `opened` with what the command's arguments say."""
    return opened(url, storage_options(asked), retry_s=asked.retry_s, screen=screen)


class OpenedRun:
    """A run's URL, its storage and its commits."""

    def __init__(self, url: str, watched: WatchedStorage, commits: tuple[CommitId, ...], screen: Screen) -> None:
        self.commits = commits
        self.storage = cast(Storage, watched)
        self.counting = watched.counting
        self._url = url
        self._screen = screen

    @property
    def url(self) -> str:
        """Return the URL without credentials."""
        return self.storage.url

    def need(self, step: int | None) -> None:
        """Raise `NoCheckpoint`, with what there is, where there is no commit, or none of `step`."""
        if not self.commits:
            self._history()  # which refuses a run whose commits are gone
            raise self.nothing_here()
        if step is not None and all(id.step != step for id in self.commits):
            steps = sorted({id.step for id in self.commits}, reverse=True)
            raise NoCheckpoint(
                f"no checkpoint of step {step} in {self.url}\n"
                f"  found  {'step' if len(steps) == 1 else 'steps'} {_some(steps)}\n"
                "  state  nothing was read\n  next   choose one of these; elastic checkpoint ls shows all"
            )

    def list(self) -> list[Commit]:
        """Return every commit with a whole manifest, newest first; those outside the lineage come last."""
        return list_commits(self.storage, self._history(), self._screen.warn)

    def verify(self, step: int | None) -> Sequence[Verified]:
        """Return every commit, or those of `step`, byte by byte."""
        return verify(self.storage, self._history(), step=step)

    def find(self, step: int | None) -> CommitId:
        """Return the newest commit, or that of `step`; one outside the lineage only where no other has this step."""
        self.need(step)
        history = self._history()
        inside = [id for id in history.lineage if step is None or id.step == step]
        outside = [id for id in history.outside if id.step == step]
        if not inside and not outside:
            raise self._all_outside()
        return (inside or outside)[0]

    def stream(self, step: int | None) -> Stream:
        """Return the newest whole checkpoint, or that of `step`, verified while a bar shows how far.

        Its tensors are then read one at a time. Passes over a damaged one, and raises, as `Checkpointer.read` does.
        """
        self.need(step)
        return Search(self._history, step=step, none=self._none, log=self._screen.warn).first_whole(self._verified)

    def nothing_here(self) -> NoCheckpoint:
        """Return the error for a URL without commits: what lies there instead, and what was probably meant."""
        found, advice = _instead(self._url)
        return NoCheckpoint(
            f"no checkpoint in {self.url}\n"
            f"  found     {found}\n  expected  a run's folder, with commits/ and data/ in it\n"
            f"  state     nothing was changed\n  next      {advice}"
        )

    def _history(self) -> History:
        return read_history(self.storage, self._screen.warn)

    def _verified(self, id: CommitId) -> Stream:
        with self._screen.progress("verifying", self._bytes(id)) as advance, self.counting(advance):
            return Stream(self.storage, id)

    def _none(self, step: int | None, rejected: dict[str, str]) -> NoCheckpoint:
        return none_whole(self.url, step, rejected) if rejected else self._all_outside()

    def _bytes(self, id: CommitId) -> int:
        try:
            return read_manifest(self.storage, id).as_commit().bytes
        except CorruptCheckpoint:
            return 0  # whoever reads it says so

    def _all_outside(self) -> NoCheckpoint:
        return NoCheckpoint(
            f"what was asked for in {self.url} lies outside the run's lineage, and is never loaded\n"
            "  state  nothing was read\n  next   elastic checkpoint ls shows what belongs to the run"
        )


class WatchedStorage:
    """Another storage, whose reads and writes of data objects are counted."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self._advance: Advance = lambda count: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._inner.get(key, start, length)
        if key.startswith(f"{DATA}/"):
            self._advance(len(data))
        return data

    def put(self, key: str, data: Buffer) -> None:
        self._inner.put(key, data)
        if key.startswith(f"{DATA}/"):
            self._advance(len(data))

    @contextlib.contextmanager
    def counting(self, advance: Advance) -> Iterator[None]:
        """Call `advance` with the bytes of each of them while the block lasts."""
        before, self._advance = self._advance, advance
        try:
            yield
        finally:
            self._advance = before


def _check(url: str, options: dict[str, Any]) -> None:
    """Raise `BadUrl` for what can be judged without contacting anything."""
    if (wrong := refusal(url, options)) is not None:
        raise BadUrl(str(wrong.error()))
    path = _local(url)
    if path is None:
        return
    for folder in (path, *(path / name for name in (COMMITS, DATA))):
        try:
            os.stat(folder)
        except PermissionError:
            raise _bad(url, f"{folder} may not be looked at", "give this user the right to read it") from None
        except OSError:
            continue  # absent
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
            raise _bad(url, f"{folder} may not be read", "give this user the right to read it")


def _instead(url: str) -> tuple[str, str]:
    """Return what lies at a URL without commits, and what to do."""
    path = _local(url)
    if path is None:
        if url.startswith("memory:"):
            return (
                "memory:// of a process that has just begun, which is empty",
                "look from inside the process that saves",
            )
        return "no object below commits/", "check the URL"
    if not os.path.exists(path):
        if typo := re.match(r"(\w+):/+", url):
            return f"no such folder: {path}", f"for a URL, write {typo[1]}:// with two slashes"
        return f"no such folder: {path}", "check the path"
    if not os.path.isdir(path):
        return f"a file, {path}", "give the run's folder"
    runs = sorted(child.name for child in path.iterdir() if os.path.isdir(child / COMMITS))
    if runs:
        return f"a folder of runs: {_some(runs)}", f"give one of them, such as {path / runs[0]}"
    if os.path.isdir(path.parent / COMMITS):
        return f"a part of a run's folder, {path}", f"give the run's folder, {path.parent}"
    return (
        f"a folder with {_some(sorted(child.name for child in path.iterdir())) or 'nothing in it'}",
        "check the path",
    )


def _local(url: str) -> Path | None:
    protocol, separator, path = url.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return Path(os.path.abspath(os.path.expanduser(path if separator else url)))


def _bad(url: str, found: str, advice: str) -> BadUrl:
    return BadUrl(str(Refusal(f"{redact(url)} cannot be opened", found, EXPECTED, advice).error()))


def _some(names: Sequence[Any]) -> str:
    """Return, for an error, the first of them, and how many more there are."""
    return ", ".join(map(str, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")

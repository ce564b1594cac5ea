"""What a run does at its URL, once, with an object of its own that is gone afterwards."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elastic.doctor.finding import Finding, Verdict, of_error
from elastic.events import words
from elastic.events.sinks import local_folder
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.names import CLAIMS
from elastic_checkpoint.storage import AlreadyThere, Storage, open_storage, written_at
from elastic_checkpoint.storage.failures import answered_at

_RETRY_S = 5.0
_CLOCK_S = 60.0  # S3 refuses requests that are 15 minutes off
_SET = "set this machine's clock (in a container: its host's): timedatectl set-ntp true, or chrony"


def looks(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Look whether a run's storage does what a run needs, and leave nothing there."""
    with _nothing_left(url):
        try:
            storage = open_storage(url, dict(options), retry_s=_RETRY_S, answer_s=_RETRY_S)
        except CheckpointError as wrong:
            yield of_error("storage", wrong)
            return
        with contextlib.closing(storage):
            yield from _looks(storage)


def _looks(storage: Storage) -> Iterator[Finding]:
    """Write, read, list, create once more and remove an object; yield what came of it."""
    key, first = f"{CLAIMS}/probe-{secrets.token_hex(8)}", secrets.token_bytes(16)
    before = time.time()
    try:
        begun_s = time.monotonic()
        storage.put_new(key, first)
        same, listed = storage.get(key) == first, key in storage.list(CLAIMS)
        took_s = time.monotonic() - begun_s
        try:
            storage.put_new(key, secrets.token_bytes(16))
            won_twice = True
        except AlreadyThere:
            won_twice = False
        exclusive, written = storage.exclusive(), written_at(storage, key)
        storage.delete(key)
        gone = key not in storage.list(CLAIMS)
    except CheckpointError as failure:
        yield of_error("storage", failure)
        with contextlib.suppress(CheckpointError):
            storage.delete(key)
        if (said := answered_at(failure.__cause__)) is not None:
            yield _clock(said - time.time())
        return
    if same and listed and gone:
        done = f"{storage.url}: wrote, read and listed an object in {words.seconds(took_s)}, and removed it"
        yield Finding("storage", Verdict.OK, done)
    else:
        lacks = "was read otherwise" if not same else "is not listed" if not listed else "is there still"
        found = f"{storage.url}: an object that was {'removed' if same and listed else 'written'} a moment ago {lacks}"
        advice = "switch off what keeps older answers (NFS: lookupcache=none), or use another storage"
        yield Finding("storage", Verdict.WRONG, found, advice)
    if won_twice or not exclusive:
        yield Finding(
            "exclusive creation",
            Verdict.NOTE,
            "not to be had: two that create the same object at one instant may both succeed",
            "one machine trains all the same; for several, name a host, too: --rdzv-endpoint=HOST:PORT,URL; or use a "
            "storage that has it, such as S3 or a folder",
        )
    else:
        yield Finding("exclusive creation", Verdict.OK, "of two that create an object, one wins")
    if written is not None:
        yield _clock(min(0.0, written + 1 - before) or max(0.0, written - time.time()))  # S3 tells whole seconds


def _clock(ahead_s: float) -> Finding:
    """Judge this machine's clock. ahead_s: by how much the storage's is ahead of it."""
    if abs(ahead_s) <= _CLOCK_S:
        return Finding("clock", Verdict.OK, f"within {_CLOCK_S:.0f} s of the storage's")
    where = "behind" if ahead_s > 0 else "ahead of"
    found = f"this machine's is {words.seconds(abs(ahead_s))} {where} the storage's"
    return Finding("clock", Verdict.WRONG, f"{found}; S3 refuses requests, and reports mix up what came first", _SET)


@contextlib.contextmanager
def _nothing_left(url: str) -> Iterator[None]:
    """Remove at the end the folders that were not there before."""
    made: list[Path] = []
    if (named := local_folder(url)) is not None:
        folder = named.expanduser().absolute()
        made += [one for one in (folder / CLAIMS, folder, *folder.parents) if not one.exists()]
    try:
        yield
    finally:
        for one in made:
            with contextlib.suppress(OSError):  # another process uses it by now
                one.rmdir()

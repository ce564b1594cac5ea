"""Where a run's manifests lie in its storage.

    manifest.json                  of the first launch; written once, and never again
    launches.jsonl                 a line for each launch: each time that the run's storage was claimed, to begin, to go
                                   on, or because all workers were started again. A part that is as in manifest.json is
                                   left out
    manifest/1f2e3d4c5b6a7980.txt  what they name: lock files, diffs, scripts, by their hashes

In a folder a launch is one line that is appended, which loses none. Objects cannot be appended to: there the one that
has just claimed the run reads the lines and puts them again with its own. Of two that do so in one instant, of which
one has lost its claim, a line may go; claims/ names all launches.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from elastic.errors import WrittenByNewer
from elastic.events.sinks import local_folder
from elastic_checkpoint.storage import AlreadyThere, Missing, Storage, TooLarge, get_bounded

FORMAT, VERSION = "elastic-manifest", 1
MANIFEST, LAUNCHES, FOLDER = "manifest.json", "launches.jsonl", "manifest"
_LARGEST = 64 << 20
_OF_EACH_LAUNCH = ("format", "version", "run", "absent")


def read_manifest(storage: Storage) -> dict[str, Any] | None:
    """Return a run's manifest; None: it has none that can be read. Raises WrittenByNewer, what the storage raises."""
    return _document(_read(storage, MANIFEST))


def read_launches(storage: Storage, manifest: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the manifest of each launch, in order. A line that is no whole one is passed over.

    Raises WrittenByNewer, and what the storage raises.
    """
    lines = map(_document, _read(storage, LAUNCHES).splitlines())
    return [_whole(line, manifest or {}) for line in lines if line is not None]


def add(
    storage: Storage,
    url: str,
    manifest: Mapping[str, Any],
    files: Mapping[str, bytes],
    first: Mapping[str, Any] | None = None,
) -> None:
    """Write a launch's manifest and its files, as the run's if it is the first. Raises what the storage raises.

    first  the run's, where it was read before
    """
    for key, data in files.items():
        _put_new(storage, key, data)
    if first is None:  # what it names is there by now
        first = manifest
        if not _put_new(storage, MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n"):
            first = read_manifest(storage) or {}
    own = {name: part for name, part in manifest.items() if name in _OF_EACH_LAUNCH or part != first.get(name)}
    _append(storage, url, json.dumps(own, separators=(",", ":")).encode() + b"\n")


def _put_new(storage: Storage, key: str, data: bytes) -> bool:
    """Create an object; False: there is one."""
    try:
        storage.put_new(key, data)
    except AlreadyThere:
        return False
    return True


def _append(storage: Storage, url: str, line: bytes) -> None:
    folder = local_folder(url)
    if folder is None:
        before = b""
        with contextlib.suppress(Missing):  # what is too large to be read is not written over
            before = bytes(get_bounded(storage, LAUNCHES, _LARGEST))
        storage.put(LAUNCHES, before + line)
        return
    file = os.open(folder / LAUNCHES, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, b"\n" + line if torn else line)
    finally:
        os.close(file)


def _read(storage: Storage, key: str) -> bytes:
    """Return an object's bytes; none where there is no such object, or none of ours."""
    with contextlib.suppress(Missing, TooLarge):
        return bytes(get_bounded(storage, key, _LARGEST))
    return b""


def _document(data: bytes) -> dict[str, Any] | None:
    """Return the manifest in these bytes; None: there is none. Raises WrittenByNewer."""
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
    if not isinstance(found, dict):
        return None
    if found.get("format") == FORMAT and isinstance(version := found.get("version"), int) and version > VERSION:
        raise WrittenByNewer("the manifest", version, VERSION)
    run = found.get("run")
    return found if isinstance(run, dict) and isinstance(run.get("claim"), int) else None


def _whole(line: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch's manifest with the parts that it has in common with the run's."""
    absent = line.get("absent") or {}
    return {**{name: part for name, part in manifest.items() if name not in absent}, **line}

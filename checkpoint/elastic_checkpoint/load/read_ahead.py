"""Reads the newest checkpoint ahead, for whoever will want it: into a spool, or into the page cache.

Promises  which checkpoint is the newest, whether it is whole and of which sizes, the one who takes it asks the storage
          as ever: what is read ahead stands for the bytes of objects alone, which are verified.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from elastic_checkpoint.load.newest import Search, none_whole
from elastic_checkpoint.load.spool import Range, Spool
from elastic_checkpoint.memory import free_bytes
from elastic_checkpoint.runs.history import read_history, read_manifest
from elastic_checkpoint.storage import Storage, get_into, open_storage

_FREE_SHARE = 4  # of the free memory, one part in so many
_RANGE_BYTES, _AT_ONCE = 2**22, 8  # what is on its way when somebody takes over is read twice
_RETRY_S = 10.0


def read_ahead(url: str, spool: Spool) -> None:
    """As much of it as a part of the free memory holds, until somebody takes over.

    Raises CheckpointError where there is none, or the storage cannot be read; OSError where the spool has ended.
    """
    with contextlib.closing(open_storage(url, retry_s=_RETRY_S)) as storage:
        history, none = partial(read_history, storage, _ignored), partial(none_whole, storage.url)
        manifest = Search(history, step=None, none=none, log=_ignored).first_whole(partial(read_manifest, storage))
        sizes = [(manifest.key(index), stored.size) for index, stored in enumerate(manifest.objects)]
        wanted = planned(sizes, free_bytes() // _FREE_SHARE)
        is_kept = "://" in storage.url  # what lies in a folder the page cache keeps
        if is_kept:
            spool.begin(wanted)

        def read(number: int) -> None:
            key, start, length = wanted[number]
            data = b"" if spool.is_over else storage.get(key, start, length)
            if is_kept and len(data) == length:
                spool.put(number, data)

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoint-ahead") as pool:
            for _ in pool.map(read, range(len(wanted))):
                pass  # or raises


def planned(objects: Sequence[tuple[str, int]], most: int) -> list[Range]:
    """The beginning of these objects (key, size), one after another, of no more than `most` bytes. Pure."""
    found: list[Range] = []
    for key, size in objects:
        for start in range(0, size, _RANGE_BYTES):
            length = min(_RANGE_BYTES, size - start)
            most -= length
            if most < 0:
                return found
            found.append(Range(key, start, length))
    return found


def spool_into(spool: Spool, storage: Storage, key: str, target: memoryview) -> int:
    """As storage.get_into: what is in the spool, and the rest from `storage`."""
    missing = spool.take(key, target)
    if missing:
        spool.take_over()
    if missing == [(0, len(target))]:
        return get_into(storage, key, target)
    for start, end in missing:
        data = storage.get(key, start, end - start)
        if len(data) != end - start:
            return start + len(data)  # the object has become shorter
        target[start:end] = data
    return len(target)


def _ignored(*_: object) -> None:
    """Whoever loads says it."""

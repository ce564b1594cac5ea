"""Reads the data objects of a commit, and gives out nothing that was not verified: whole objects, or their hash chunks.

Load, stream, export, digest and diff all read through here. Bytes that come back damaged are read once more
(storage/reads.py); what stays damaged is `CorruptCheckpoint`, which names the object, its step and its tensors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.hashing import chunk_hashes, xxh3
from elastic_checkpoint.format.manifest import Manifest
from elastic_checkpoint.storage import Buffer, Missing, Storage, get_into, map_object
from elastic_checkpoint.storage.reads import read_again

Chunk = tuple[int, int]  # number of the object, number of its chunk
Run = tuple[int, int, int]  # number of the object, of its first chunk, how many


def check_sizes(storage: Storage, manifest: Manifest) -> None:
    """Raise `CorruptCheckpoint` unless the storage holds every object at its size.

    One listing says it of all; what it says otherwise is asked for by name, since listings may be stale.
    """
    found = storage.list(manifest.id.data_folder) if manifest.objects else {}
    for index, stored in enumerate(manifest.objects):
        key = manifest.key(index)
        if found.get(key) == stored.size:
            continue
        try:
            size = storage.size(key)
        except Missing as missing:
            raise damaged(manifest, index, f"{missing.what}, the manifest says {stored.size:,} bytes") from None
        if size != stored.size:
            raise damaged(manifest, index, f"has {size:,} bytes, the manifest says {stored.size:,} bytes")


@read_again
def read_object(storage: Storage, manifest: Manifest, index: int) -> bytes:
    """Return object `index`, verified. Raises `CorruptCheckpoint` naming it, the damaged chunks and its tensors."""
    try:
        data = storage.get(manifest.key(index), 0, manifest.objects[index].size + 1)
    except Missing as missing:
        raise damaged(manifest, index, missing.what) from None
    check_object(manifest, index, data, len(data))
    return data


@read_again
def read_or_map(storage: Storage, manifest: Manifest, index: int, *, may_map: bool) -> NDArray[np.uint8]:
    """Return object `index`, verified, in memory that may be written to; with `may_map` a file is mapped instead.

    NumPy asks for huge pages, which torch does not: most of the time of reading into fresh memory is the kernel's, for
    giving out pages.
    """
    key = manifest.key(index)
    try:
        mapped = map_object(storage, key) if may_map else None
        if mapped is not None:
            check_object(manifest, index, mapped, len(mapped))
            return np.frombuffer(mapped, np.uint8)
        data = np.empty(manifest.objects[index].size, np.uint8)
        size = get_into(storage, key, data.data)
    except Missing as missing:
        raise damaged(manifest, index, missing.what) from None
    check_object(manifest, index, data.data, size)
    return data


def check_object(manifest: Manifest, index: int, data: Buffer, size: int) -> None:
    """Raise `CorruptCheckpoint` unless these are the object's bytes."""
    stored = manifest.objects[index]
    if size != stored.size:
        raise damaged(manifest, index, f"has {size:,} bytes, the manifest says {stored.size:,}")
    found = xxh3(data)
    if found != stored.xxh3:
        chunks = chunk_hashes(data, stored.chunk_bytes)
        bad = [number for number, pair in enumerate(zip(chunks, stored.chunks, strict=True)) if pair[0] != pair[1]]
        where = f" (chunks {bad} of {len(chunks)}, counting from 0)" if bad else ""
        raise damaged(manifest, index, f"has xxh3_128 {found}, the manifest says {stored.xxh3}{where}")


def chunks_of(run: Run) -> list[Chunk]:
    """Return the chunks of a run, in order."""
    object, first, count = run
    return [(object, number) for number in range(first, first + count)]


def run_range(manifest: Manifest, run: Run) -> tuple[int, int]:
    """Return where a run begins in its object, and its size in bytes."""
    stored = manifest.objects[run[0]]
    start = run[1] * stored.chunk_bytes
    return start, min(run[2] * stored.chunk_bytes, stored.size - start)


@read_again
def read_run(storage: Storage, manifest: Manifest, run: Run) -> bytes:
    """Return a run's bytes, verified. Raises `CorruptCheckpoint`, StorageError."""
    start, size = run_range(manifest, run)
    try:
        data = storage.get(manifest.key(run[0]), start, size)
    except Missing as missing:
        raise damaged(manifest, run[0], missing.what, chunk=run[1]) from None
    check_run(manifest, run, data)
    return data


def check_run(manifest: Manifest, run: Run, data: Buffer) -> None:
    """Raise `CorruptCheckpoint` where these are not the run's bytes."""
    start, size = run_range(manifest, run)
    if len(data) != size:
        raise damaged(manifest, run[0], f"has {len(data):,} bytes, the manifest says {size:,}", chunk=run[1])
    view = memoryview(data)
    for object, number in chunks_of(run):
        begins, length = run_range(manifest, (object, number, 1))
        found = xxh3(view[begins - start : begins - start + length])
        expected = manifest.objects[object].chunks[number]
        if found != expected:
            raise damaged(manifest, object, f"has xxh3_128 {found}, the manifest says {expected}", chunk=number)


def damaged(
    manifest: Manifest,
    index: int,
    what: str,
    *,
    chunk: int | None = None,
    tensor: str | None = None,
    state: str = "nothing was loaded",
) -> CorruptCheckpoint:
    """Return the error of damage in an object.

    what    is wrong with object `index`, or with this hash chunk of it: "is absent", "has ..."
    tensor  the one that is concerned; else all that lie in the object
    """
    tensors, key = manifest.tensors_in(index) if tensor is None else (tensor,), manifest.key(index)
    shown = ", ".join(tensors[:5]) + (f" and {len(tensors) - 5} more" if len(tensors) > 5 else "")
    where = f"object {index} of {len(manifest.objects)}" + (f", chunk {chunk}" if chunk is not None else "")
    return CorruptCheckpoint(
        f"checkpoint step {manifest.id.step}, {where} (counting from 0) {what}\n"
        f"  object   {key}\n  tensors  {shown or 'none'}\n  state    {state}",
        commit=str(manifest.id),
        key=key,
        tensors=tensors,
    )

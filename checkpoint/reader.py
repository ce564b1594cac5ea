"""Reads a commit and believes nothing that was not verified: manifest, then every object whole, then the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkpoint.decoding import decode
from checkpoint.dtypes import writable_bytes
from checkpoint.errors import CheckpointError, CorruptCheckpoint, StorageError
from checkpoint.hashing import chunk_hashes, xxh3
from checkpoint.history import read_manifest
from checkpoint.manifest import Commit, Manifest, StoredTensor
from checkpoint.names import CommitId
from checkpoint.shards import Piece
from checkpoint.storage import Missing, Storage
from checkpoint.tree import Tree


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory.

    tree  what was saved: nested dicts, lists and tuples of CPU tensors and plain values; a stateful object's place
          holds its state_dict(). Tensors that shared memory when they were saved are one tensor here.
    """

    step: int
    meta: dict[str, Any]
    tree: Tree
    commit: Commit


def read_commit(storage: Storage, id: CommitId) -> Checkpoint:
    """The checkpoint `id`, every byte verified. Raises `CorruptCheckpoint` naming object and tensors.

    memory  the state, and one object beside it. Nothing large is allocated before the storage has confirmed every
            object's size.
    """
    manifest = read_manifest(storage, id)
    check_sizes(storage, manifest)
    tensors = {name: torch.empty(stored.shape, dtype=stored.dtype) for name, stored in manifest.tensors.items()}
    pieces: dict[int, list[Piece]] = {index: [] for index in range(len(manifest.objects))}
    for stored in manifest.tensors.values():
        for index, piece in stored.pieces:
            pieces[index].append(piece)
    for index in range(len(manifest.objects)):
        data = read_object(storage, manifest, index)
        for piece in pieces[index]:
            _place(piece, data, tensors[piece.tensor], manifest.tensors[piece.tensor])
    try:
        tree = decode(manifest.tree, tensors)
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"manifest {id.manifest_key}: {error}", commit=str(id)) from error
    return Checkpoint(id.step, manifest.meta, tree, manifest.commit())


@dataclass(frozen=True)
class Verified:
    """What verifying one commit found. `problems` is empty where every byte is as it was written."""

    name: str
    step: int
    in_lineage: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(storage: Storage, id: CommitId, in_lineage: bool) -> Verified:
    """Reads every byte of the commit, going on after a damaged object, so that all of them are named."""
    problems = []
    try:
        manifest = read_manifest(storage, id)
    except StorageError:
        raise
    except CheckpointError as error:
        return Verified(str(id), id.step, in_lineage, (str(error),))
    for index in range(len(manifest.objects)):
        try:
            read_object(storage, manifest, index)
        except CorruptCheckpoint as error:
            problems.append(str(error))
    return Verified(str(id), id.step, in_lineage, tuple(problems))


def check_sizes(storage: Storage, manifest: Manifest) -> None:
    """That the storage holds every object at its size. Raises `CorruptCheckpoint`."""
    found = storage.list(manifest.id.data_folder) if manifest.objects else {}
    for index, stored in enumerate(manifest.objects):
        size = found.get(manifest.id.shard_key(index))
        if size != stored.size:
            what = "is absent" if size is None else f"has {size:,} bytes"
            raise _corrupt(manifest, index, f"{what}, the manifest says {stored.size:,} bytes")


def read_object(storage: Storage, manifest: Manifest, index: int) -> bytes:
    """Object `index`, verified. Raises `CorruptCheckpoint` naming it, the damaged chunks and its tensors."""
    stored = manifest.objects[index]
    try:
        data = storage.get(manifest.id.shard_key(index))
    except Missing:
        raise _corrupt(manifest, index, "is absent") from None
    if len(data) != stored.size:
        raise _corrupt(manifest, index, f"has {len(data):,} bytes, the manifest says {stored.size:,}")
    found = xxh3(data)
    if found != stored.xxh3:
        chunks = chunk_hashes(data, stored.chunk_bytes)
        bad = [number for number, pair in enumerate(zip(chunks, stored.chunks, strict=True)) if pair[0] != pair[1]]
        where = f" (chunks {bad} of {len(chunks)}, counting from 0)" if bad else ""
        raise _corrupt(manifest, index, f"has xxh3_128 {found}, the manifest says {stored.xxh3}{where}")
    return data


def _place(piece: Piece, data: bytes, tensor: torch.Tensor, stored: StoredTensor) -> None:
    """Copies a piece's bytes into its box of the tensor."""
    source = np.frombuffer(data, dtype=np.uint8, count=piece.bytes, offset=piece.start)
    if _contiguous(piece, stored.shape):
        first = 0
        for offset, size in zip(piece.offsets, stored.shape, strict=True):
            first = first * size + offset
        start = first * stored.dtype.itemsize
        writable_bytes(tensor)[start : start + piece.bytes] = source
        return
    box = torch.empty(piece.sizes, dtype=stored.dtype)
    writable_bytes(box)[:] = source
    for axis, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
        tensor = tensor.narrow(axis, offset, size)
    tensor.copy_(box)


def _contiguous(piece: Piece, shape: tuple[int, ...]) -> bool:
    """Whether the box is one run of the tensor's row-major elements: after the first cut axis, all are whole."""
    axes = [axis for axis, (size, whole) in enumerate(zip(piece.sizes, shape, strict=True)) if size != whole]
    return not axes or all(size == 1 for size in piece.sizes[: axes[-1]])


def _corrupt(manifest: Manifest, index: int, what: str) -> CorruptCheckpoint:
    tensors = manifest.tensors_in(index)
    shown = ", ".join(tensors[:5]) + (f" and {len(tensors) - 5} more" if len(tensors) > 5 else "")
    key = manifest.id.shard_key(index)
    return CorruptCheckpoint(
        f"checkpoint step {manifest.id.step}, object {index} of {len(manifest.objects)} (counting from 0) {what}\n"
        f"  object   {key}\n  tensors  {shown or 'none'}\n  state    nothing was loaded",
        commit=str(manifest.id),
        key=key,
        tensors=tensors,
    )

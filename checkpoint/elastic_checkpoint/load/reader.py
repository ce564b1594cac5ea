"""Reads a commit and believes nothing that was not verified: manifest, then every object whole, then the tree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.decoding import decode
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.manifest import Commit, corrupt_manifest
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.pieces import StoredTensor
from elastic_checkpoint.format.shards import Piece, run_start
from elastic_checkpoint.format.tensors import torch_dtype, writable_bytes
from elastic_checkpoint.load.objects import check_sizes, read_or_map
from elastic_checkpoint.memory import free_bytes
from elastic_checkpoint.runs.history import read_manifest
from elastic_checkpoint.storage import Storage

_AT_ONCE = 4  # objects that are read and verified at the same time


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory.

    Attributes:
        tree: What was saved: nested dicts, lists and tuples of CPU tensors and plain values; a stateful object's place
            holds its state_dict(). Tensors that shared memory when they were saved are one tensor here.
    """

    step: int
    meta: dict[str, Any]
    tree: Tree
    commit: Commit


def read_commit(storage: Storage, id: CommitId, *, shared: bool = False) -> Checkpoint:
    """Return the checkpoint `id`, every byte verified. Raises `CorruptCheckpoint` naming object and tensors.

    shared  True is faster, but tensors that lie in one object are parts of one piece of memory, which stays as long as
            any of them: for those who copy them elsewhere
    memory  the state, and a few objects beside it; from a folder of this machine with `shared`, next to nothing, as its
            files are mapped, if half of the free memory holds them: then they stay there between the look at their
            hashes and their copying. Nothing large is allocated before the storage has confirmed every object's size.
    """
    manifest = read_manifest(storage, id)
    check_sizes(storage, manifest)
    tensors: dict[str, torch.Tensor] = {}
    pieces: dict[int, list[Piece]] = {index: [] for index in range(len(manifest.objects))}
    for name, stored in manifest.tensors.items():
        if not (shared and _is_viewable(stored)):
            tensors[name] = torch.empty(stored.shape, dtype=torch_dtype(stored.dtype))
        for index, piece in stored.pieces:
            pieces[index].append(piece)

    may_map = 2 * sum(stored.size for stored in manifest.objects) <= free_bytes()

    def read(index: int) -> None:
        data = torch.from_numpy(read_or_map(storage, manifest, index, may_map=may_map))
        for piece in pieces[index]:
            stored = manifest.tensors[piece.tensor]
            source = data[piece.start : piece.start + piece.bytes]
            if shared and _is_viewable(stored):
                tensors[piece.tensor] = source.view(torch_dtype(stored.dtype)).view(stored.shape)
            else:
                _copy(piece, source, tensors[piece.tensor], stored)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoint-read") as pool:
        jobs = [pool.submit(read, index) for index in range(len(manifest.objects))]
        try:
            for job in jobs:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)
    try:
        tree = decode(manifest.tree, tensors)
    except CorruptCheckpoint as error:
        raise corrupt_manifest(id, error) from error
    return Checkpoint(id.step, manifest.meta, tree, manifest.as_commit())


def _is_viewable(stored: StoredTensor) -> bool:
    """Return whether all of a tensor lies in one object, aligned to its elements."""
    return len(stored.pieces) == 1 and stored.pieces[0][1].start % stored.dtype.itemsize == 0


def _copy(piece: Piece, source: torch.Tensor, tensor: torch.Tensor, stored: StoredTensor) -> None:
    """Copy a piece's bytes into its box of the tensor."""
    if _contiguous(piece, stored.shape):
        start = run_start(piece, stored.shape, stored.dtype)
        writable_bytes(tensor)[start : start + piece.bytes] = source.numpy()
        return
    box = torch.empty(piece.sizes, dtype=torch_dtype(stored.dtype))
    writable_bytes(box)[:] = source.numpy()
    for axis, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
        tensor = tensor.narrow(axis, offset, size)
    tensor.copy_(box)


def _contiguous(piece: Piece, shape: tuple[int, ...]) -> bool:
    """Return whether the box is one run of the tensor's row-major elements: after the first cut axis, all are whole."""
    axes = [axis for axis, (size, whole) in enumerate(zip(piece.sizes, shape, strict=True)) if size != whole]
    return not axes or all(size == 1 for size in piece.sizes[: axes[-1]])

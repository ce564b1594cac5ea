"""A commit's tensors one at a time, in any order, every byte verified: for who wants all of it and has little memory.

First every object is read whole and verified, which finds any damage before anything is made of it; of each piece of a
tensor the hash is kept. Then pieces are read by their ranges, and compared with that. Pieces that are wanted in the
order in which they lie are read ahead.

A small checkpoint is read once, as its objects are kept. Of one that lies elsewhere (at a URL) as many are kept as fit
into a quarter of the free memory: there each byte costs, while a folder's second read comes from the page cache.

Memory: one object, then one tensor and READ_AHEAD_BYTES for each of a few objects; and what is kept.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from checkpoint.errors import CorruptCheckpoint
from checkpoint.format.hashing import xxh3
from checkpoint.format.leaves import Array, Value, entry, leaves
from checkpoint.format.manifest import Commit
from checkpoint.format.names import CommitId
from checkpoint.format.shards import Piece
from checkpoint.format.tree import Document
from checkpoint.load.reader import check_sizes, read_object
from checkpoint.memory import free_bytes
from checkpoint.runs.history import read_manifest
from checkpoint.storage import Buffer, Missing, Storage
from checkpoint.storage.again import read_again

KEPT_BYTES = 2**27  # checkpoints of no more are kept as they are verified
_KEPT_SHARE = 4  # of what lies elsewhere, one part in so many of the free memory
READ_AHEAD_BYTES = 2**23
_WINDOWS = 8  # objects that are read ahead at a time: a sharded tensor lies in several

Bytes = NDArray[np.uint8]


class Stream:
    """See the file's promise."""

    def __init__(self, storage: Storage, id: CommitId) -> None:
        """Verifies all of it. Raises `CorruptCheckpoint`, `StorageError`."""
        self._storage = storage
        self._manifest = read_manifest(storage, id)
        check_sizes(storage, self._manifest)
        self._hashes: dict[tuple[int, int], str] = {}  # (object, where a piece begins) -> of the piece
        self._kept: dict[int, Buffer] = {}
        self._room = self._room_bytes()
        self._windows: OrderedDict[int, tuple[int, Buffer]] = OrderedDict()  # object -> from where on, bytes
        self._ends: dict[int, int] = {}  # object -> where the piece that was wanted last ends
        lying: list[list[Piece]] = [[] for _ in self._manifest.objects]
        for stored in self._manifest.tensors.values():
            for index, piece in stored.pieces:
                lying[index].append(piece)
        for index, pieces in enumerate(lying):
            self._verify(index, pieces)

    def _verify(self, index: int, pieces: list[Piece]) -> None:
        data = memoryview(read_object(self._storage, self._manifest, index))
        for piece in pieces:
            self._hashes[index, piece.start] = xxh3(data[piece.start : piece.start + piece.bytes])
        if len(data) <= self._room:
            self._kept[index] = data
            self._room -= len(data)

    def _room_bytes(self) -> int:
        """For objects that are kept."""
        if "://" in self._storage.url:
            return max(KEPT_BYTES, free_bytes() // _KEPT_SHARE)
        return KEPT_BYTES if self.commit.bytes <= KEPT_BYTES else 0

    @property
    def commit(self) -> Commit:
        return self._manifest.commit()

    @property
    def tree(self) -> Document:
        """The document of all that is no tensor; decoding.py and leaves.py read it."""
        return self._manifest.tree

    def entries(self, document: Document, path: str = "") -> list[tuple[str, Array | Value]]:
        """The leaves of this part of the tree, which lies at `path`. Raises `CorruptCheckpoint`."""
        try:
            return [(name, entry(leaf, self._manifest.tensors)) for name, leaf in leaves(document, path)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpoint(
                f"manifest {self._manifest.id.manifest_key}: its tree cannot be read: {type(error).__name__}: {error}",
                commit=str(self._manifest.id),
            ) from error

    def read(self, name: str) -> Bytes:
        """The bytes of the tensor with this name in the manifest, flat, in row-major order; not to be written to."""
        stored = self._manifest.tensors[name]
        if len(stored.pieces) == 1:
            return np.frombuffer(self._piece(*stored.pieces[0]), np.uint8)
        itemsize = stored.dtype.itemsize
        whole: Bytes = np.empty((*stored.shape, itemsize), np.uint8)
        for index, piece in stored.pieces:
            box = tuple(slice(first, first + size) for first, size in zip(piece.offsets, piece.sizes, strict=True))
            whole[box] = np.frombuffer(self._piece(index, piece), np.uint8).reshape(*piece.sizes, itemsize)
        return whole.reshape(-1)

    @read_again
    def _piece(self, index: int, piece: Piece) -> Buffer:
        data = self._range(index, piece.start, piece.bytes)
        if xxh3(data) != self._hashes[index, piece.start]:
            self._windows.pop(index, None)
            key = self._manifest.id.shard_key(index)
            raise CorruptCheckpoint(
                f"checkpoint step {self._manifest.id.step}, object {index} of {len(self._manifest.objects)} (counting "
                f"from 0) was whole, and changed while it was read\n  object   {key}\n  tensors  {piece.tensor}",
                commit=str(self._manifest.id),
                key=key,
                tensors=(piece.tensor,),
            )
        return data

    def _range(self, index: int, start: int, length: int) -> Buffer:
        """These bytes of an object, or fewer at its end."""
        if index in self._kept:
            return memoryview(self._kept[index])[start : start + length]
        in_order = self._ends.get(index, start) == start
        self._ends[index] = start + length
        begin, window = self._windows.get(index, (0, b""))
        if not begin <= start <= start + length <= begin + len(window):
            begin, window = start, self._get(index, start, max(length, READ_AHEAD_BYTES if in_order else 0))
            self._windows.pop(index, None)
            if length < len(window) <= READ_AHEAD_BYTES:
                self._windows[index] = begin, window
            if len(self._windows) > _WINDOWS:
                self._windows.popitem(last=False)
        return memoryview(window)[start - begin : start - begin + length]

    def _get(self, index: int, start: int, length: int) -> bytes:
        try:
            return self._storage.get(self._manifest.id.shard_key(index), start, length)
        except Missing:
            return b""

"""A commit's tensors one at a time, in any order, every byte verified: for whoever wants all of it in little memory.

Their pieces are verified in one of two ways:

    Verified first  every object is read whole, which finds any damage before anything is made of it, and of each piece
                    the hash is kept. Then pieces are read by their ranges, and compared with that. Those that are
                    wanted in the order in which they lie are read ahead
    By chunks       nothing is read before it is wanted: then the hash chunks that hold it, of which a few are kept

Verified first, a small checkpoint is read once, as its objects are kept. Of one that lies elsewhere (at a URL) as many
are kept as fit into a quarter of the free memory: there each byte costs, while a folder's second read comes from the
page cache. By chunks, each byte is read once where pieces are wanted in the order in which they lie.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from elastic_checkpoint.format.document import Document
from elastic_checkpoint.format.hashing import xxh3
from elastic_checkpoint.format.leaves import Array, Value, entry, leaves
from elastic_checkpoint.format.manifest import Commit, Manifest, corrupt_manifest
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.shards import Piece
from elastic_checkpoint.load.objects import check_sizes, damaged, read_object, read_run
from elastic_checkpoint.memory import free_bytes
from elastic_checkpoint.runs.history import read_manifest
from elastic_checkpoint.storage import Buffer, Missing, Storage
from elastic_checkpoint.storage.reads import read_again


class Stream:
    """The tensors of one commit, read one at a time, and the document of all else."""

    def __init__(self, storage: Storage, id: CommitId, *, verify: bool = True) -> None:
        """Read the manifest and ask for the objects' sizes. Raises `CorruptCheckpoint`, `StorageError`.

        verify  all of it, before anything of it is given out; False verifies what is asked for
        """
        self._manifest = read_manifest(storage, id)
        check_sizes(storage, self._manifest)
        self._pieces = (VerifiedFirst if verify else ByChunks)(storage, self._manifest)

    @property
    def commit(self) -> Commit:
        return self._manifest.as_commit()

    @property
    def tree(self) -> Document:
        """Return the document of all that is no tensor; format/decoding.py and format/leaves.py read it."""
        return self._manifest.tree

    def entries(self, document: Document, path: str = "") -> list[tuple[str, Array | Value]]:
        """Return the leaves of this part of the tree, which lies at `path`. Raises `CorruptCheckpoint`."""
        try:
            return [(name, entry(leaf, self._manifest.tensors)) for name, leaf in leaves(document, path)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"its tree cannot be read: {type(error).__name__}: {error}"
            raise corrupt_manifest(self._manifest.id, why) from error

    def where(self, name: str) -> tuple[int, int]:
        """Return where the tensor begins: the number of an object, and a position in it."""
        return min(((index, piece.start) for index, piece in self._manifest.tensors[name].pieces), default=(0, 0))

    def read(self, name: str) -> Bytes:
        """Return the bytes of the tensor of this name, flat, in row-major order; not to be written to."""
        stored = self._manifest.tensors[name]
        if len(stored.pieces) == 1:
            return np.frombuffer(self._pieces.read(*stored.pieces[0]), np.uint8)
        itemsize = stored.dtype.itemsize
        whole: Bytes = np.empty((*stored.shape, itemsize), np.uint8)
        for index, piece in stored.pieces:
            box = tuple(slice(first, first + size) for first, size in zip(piece.offsets, piece.sizes, strict=True))
            whole[box] = np.frombuffer(self._pieces.read(index, piece), np.uint8).reshape(*piece.sizes, itemsize)
        return whole.reshape(-1)


KEPT_BYTES = 2**27  # checkpoints of no more are kept as they are verified
_KEPT_SHARE = 4  # of what lies elsewhere, one part in so many of the free memory
READ_AHEAD_BYTES = 2**23
_WINDOWS = 8  # objects that are read ahead at a time: a sharded tensor lies in several
_CHUNKS = 4  # that are kept

Bytes = NDArray[np.uint8]


class VerifiedFirst:
    """Reads pieces of a commit that it has verified whole.

    Memory: one object, then READ_AHEAD_BYTES for each of a few; and what is kept.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        """Verify all of it. Raises `CorruptCheckpoint`, `StorageError`."""
        self._storage, self._manifest = storage, manifest
        self._hashes: dict[tuple[int, int], str] = {}  # (object, where a piece begins) -> of the piece
        self._kept: dict[int, Buffer] = {}
        self._room = self._room_bytes()
        self._windows: OrderedDict[int, tuple[int, Buffer]] = OrderedDict()  # object -> from where on, bytes
        self._ends: dict[int, int] = {}  # object -> where the piece that was wanted last ends
        lying: list[list[Piece]] = [[] for _ in manifest.objects]
        for stored in manifest.tensors.values():
            for index, piece in stored.pieces:
                lying[index].append(piece)
        for index, pieces in enumerate(lying):
            self._verify(index, pieces)

    @read_again
    def read(self, index: int, piece: Piece) -> Buffer:
        """Return the bytes of a piece of object `index`. Raises `CorruptCheckpoint`, `StorageError`."""
        data = self._range(index, piece.start, piece.bytes)
        if xxh3(data) != self._hashes[index, piece.start]:
            self._windows.pop(index, None)
            raise damaged(
                self._manifest,
                index,
                "was whole, and changed while it was read",
                tensor=piece.tensor,
                state="what was read of it before is as it was saved",
            )
        return data

    def _range(self, index: int, start: int, length: int) -> Buffer:
        """Return these bytes of an object, or fewer at its end."""
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
        """Return bytes of an object from the storage; none if it is gone, which no hash then fits."""
        try:
            return self._storage.get(self._manifest.key(index), start, length)
        except Missing:
            return b""

    def _verify(self, index: int, pieces: list[Piece]) -> None:
        """Verify an object, note the hashes of its pieces, and keep it if there is room."""
        data = memoryview(read_object(self._storage, self._manifest, index))
        for piece in pieces:
            self._hashes[index, piece.start] = xxh3(data[piece.start : piece.start + piece.bytes])
        if len(data) <= self._room:
            self._kept[index] = data
            self._room -= len(data)

    def _room_bytes(self) -> int:
        """Return how many bytes of objects may be kept."""
        if "://" in self._storage.url:
            return max(KEPT_BYTES, free_bytes() // _KEPT_SHARE)
        return KEPT_BYTES if self._manifest.as_commit().bytes <= KEPT_BYTES else 0


class ByChunks:
    """Reads pieces of a commit by the hash chunks that hold them, and verifies those.

    Memory: a few chunks (hashing.CHUNK_BYTES each), and the piece.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage, self._manifest = storage, manifest
        self._chunks: OrderedDict[tuple[int, int], memoryview] = OrderedDict()

    def read(self, index: int, piece: Piece) -> Buffer:
        """Return the bytes of a piece of object `index`. Raises `CorruptCheckpoint`, `StorageError`."""
        start, end = piece.start, piece.start + piece.bytes
        span: Bytes = np.empty(piece.bytes, np.uint8)
        size = self._manifest.objects[index].chunk_bytes
        for number in range(start // size, -(-end // size)):
            first, last = max(start, number * size), min(end, (number + 1) * size)
            part = self._chunk(index, number)[first - number * size : last - number * size]
            span[first - start : last - start] = np.frombuffer(part, np.uint8)
        return span.data

    def _chunk(self, index: int, number: int) -> memoryview:
        """Return a chunk, verified; the last few are kept."""
        key = index, number
        if key not in self._chunks:
            self._chunks[key] = memoryview(read_run(self._storage, self._manifest, (index, number, 1)))
            if len(self._chunks) > _CHUNKS:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(key)
        return self._chunks[key]

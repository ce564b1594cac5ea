"""A commit's tensors one at a time, in any order, every byte verified: for whoever wants all of it in little memory.

Memory: one tensor, and what pieces.py says.
"""

from __future__ import annotations

import numpy as np

from elastic_checkpoint.format.document import Document
from elastic_checkpoint.format.leaves import Array, Value, entry, leaves
from elastic_checkpoint.format.manifest import Commit, corrupt_manifest
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.load.objects import check_sizes
from elastic_checkpoint.load.pieces import ByChunks, Bytes, VerifiedFirst
from elastic_checkpoint.runs.history import read_manifest
from elastic_checkpoint.storage import Storage


class Stream:
    """One commit."""

    def __init__(self, storage: Storage, id: CommitId, *, verify: bool = True) -> None:
        """Reads the manifest and asks for the objects' sizes. Raises `CorruptCheckpoint`, `StorageError`.

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
        """The document of all that is no tensor; format/decoding.py and format/leaves.py read it."""
        return self._manifest.tree

    def entries(self, document: Document, path: str = "") -> list[tuple[str, Array | Value]]:
        """The leaves of this part of the tree, which lies at `path`. Raises `CorruptCheckpoint`."""
        try:
            return [(name, entry(leaf, self._manifest.tensors)) for name, leaf in leaves(document, path)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"its tree cannot be read: {type(error).__name__}: {error}"
            raise corrupt_manifest(self._manifest.id, why) from error

    def where(self, name: str) -> tuple[int, int]:
        """Where the tensor begins: the number of an object, and a position in it."""
        return min(((index, piece.start) for index, piece in self._manifest.tensors[name].pieces), default=(0, 0))

    def read(self, name: str) -> Bytes:
        """The bytes of the tensor with this name in the manifest, flat, in row-major order; not to be written to."""
        stored = self._manifest.tensors[name]
        if len(stored.pieces) == 1:
            return np.frombuffer(self._pieces.read(*stored.pieces[0]), np.uint8)
        itemsize = stored.dtype.itemsize
        whole: Bytes = np.empty((*stored.shape, itemsize), np.uint8)
        for index, piece in stored.pieces:
            box = tuple(slice(first, first + size) for first, size in zip(piece.offsets, piece.sizes, strict=True))
            whole[box] = np.frombuffer(self._pieces.read(index, piece), np.uint8).reshape(*piece.sizes, itemsize)
        return whole.reshape(-1)

"""A save before its objects were written: all of its manifest but their hashes. Plain bytes, so it needs no torch.

The process that knows the state drafts; whoever writes the objects (the same process, or the writer process that reads
the draft out of shared memory) fills in what it wrote, and has the manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.format.hashing import seal_text, to_json
from elastic_checkpoint.format.names import CommitId

MANIFEST_BYTES_MAX = 2**30  # 4,000 ranks that each hold a part of 4,000 tensors need about as much


@dataclass(frozen=True)
class StoredObject:
    """One data object: its size in bytes, the xxh3_128 of all of it, and of each `chunk_bytes` of it.

    helper  is in its key, where another process than the one that committed has stored it, as before 2026-11-29; else 0
    """

    size: int
    xxh3: str
    chunk_bytes: int
    chunks: tuple[str, ...]
    helper: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as it lies in a manifest, and as it travels between processes."""
        return {"size": self.size, "xxh3_128": self.xxh3, "chunk_bytes": self.chunk_bytes, "chunks": self.chunks}

    @classmethod
    def of(cls, document: dict[str, Any]) -> StoredObject:
        """Return the object of a document that came from a process of ours."""
        size, hashed, chunks = document["size"], document["xxh3_128"], tuple(document["chunks"])
        return cls(size, hashed, document["chunk_bytes"], chunks, document.get("helper", 0))


@dataclass(frozen=True)
class Draft:
    """A planned save.

    claim_nonce  what our own claim holds while it is ours
    sizes        of the objects, in bytes and in their order
    head, tail   the manifest's body as JSON, before and after its list of objects
    """

    id: CommitId
    claim_nonce: str
    sizes: tuple[int, ...]
    head: bytes
    tail: bytes

    def planned(self) -> dict[str, int]:
        """Return key -> size in bytes of every object."""
        return {self.id.shard_key(index): size for index, size in enumerate(self.sizes)}

    def manifest(self, objects: Sequence[StoredObject]) -> bytes:
        """Return the manifest's bytes, once all objects are written."""
        return seal_text(self.head + to_json([one.document() for one in objects]) + self.tail)

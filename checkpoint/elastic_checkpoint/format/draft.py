"""A save before its objects were written: all of its manifest but their hashes. Plain bytes, so it needs no torch.

The process that knows the state drafts; whoever writes the objects (the same process, or the writer process that reads
the draft out of shared memory) fills in what it wrote, and has the manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.format.envelope import seal_text, to_json
from elastic_checkpoint.format.names import CommitId

_FORMAT_OF_HELPERS = b'{"format":3'  # a head begins with another digit, see manifest.draft
MANIFEST_BYTES_MAX = 2**30  # 4,000 ranks that each hold a part of 4,000 tensors need about as much


@dataclass(frozen=True)
class StoredObject:
    """One data object: its size in bytes, the xxh3_128 of all of it, and of each `chunk_bytes` of it.

    helper  who stored it, which is in its key; 0: who committed the save
    """

    size: int
    xxh3: str
    chunk_bytes: int
    chunks: tuple[str, ...]
    helper: int = 0

    def document(self) -> dict[str, Any]:
        """As it lies in a manifest, and as it travels between processes."""
        by = {"helper": self.helper} if self.helper else {}
        return {"size": self.size, "xxh3_128": self.xxh3, "chunk_bytes": self.chunk_bytes, "chunks": self.chunks, **by}

    @classmethod
    def of(cls, document: dict[str, Any]) -> StoredObject:
        """The inverse, for what came from a process of ours."""
        return cls(document["size"], document["xxh3_128"], document["chunk_bytes"], tuple(document["chunks"]))


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

    def planned(self, objects: Sequence[StoredObject] = ()) -> dict[str, int]:
        """Key -> size in bytes of every object, stored by who commits; or by whom these say."""
        by = {index: one.helper for index, one in enumerate(objects)}
        return {self.id.shard_key(index, by.get(index, 0)): size for index, size in enumerate(self.sizes)}

    def manifest(self, objects: Sequence[StoredObject]) -> bytes:
        """The manifest's bytes, once all objects are written."""
        head = self.head
        if any(one.helper for one in objects):
            head = _FORMAT_OF_HELPERS + head[len(_FORMAT_OF_HELPERS) :]
        return seal_text(head + to_json([one.document() for one in objects]) + self.tail)

"""One object of compiled code: an index that only who knows the secret can have made, and what it names.

    length of the index, 8 bytes   the index, sealed (sealed.py)   the pieces' bytes, one after the other

The index holds each piece's name and size, and the SHA-256 of all their bytes. So who only wants to know what is there
reads its beginning, and whoever reads all of it believes no byte before it was compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from elastic.loop.compiled.sealed import OVERHEAD_BYTES, NotAuthentic, seal, unseal
from elastic.state.compiled_artifacts import Piece

INDEX_BYTES_MAX = 4 << 20
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Index:
    """
    sizes   name -> bytes, in the order in which they lie there
    sha256  of them all, in hexadecimal digits
    """

    sizes: dict[str, int]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Of the object."""
        return object_bytes(self.sizes)


def encode(contents: Mapping[str, bytes], *, key: bytes, path: str) -> bytes:
    """An object that lies at that path. contents: by name"""
    body = b"".join(contents.values())
    index = _encoded({name: len(content) for name, content in contents.items()}, hashlib.sha256(body).hexdigest())
    sealed = seal(index, key=key, path=path)
    return b"".join((len(sealed).to_bytes(_LENGTH_BYTES, "big"), sealed, body))


def index_bytes(beginning: bytes) -> int:
    """How many bytes of an object its index takes, as its first ones say. Raises NotAuthentic for what cannot be."""
    length = int.from_bytes(beginning[:_LENGTH_BYTES], "big")
    if len(beginning) < _LENGTH_BYTES or not OVERHEAD_BYTES <= length <= INDEX_BYTES_MAX:
        raise NotAuthentic("it is no object of compiled code")
    return _LENGTH_BYTES + length


def decode_index(beginning: bytes, *, key: bytes, path: str) -> Index:
    """Of an object, or as much of it as `index_bytes` says. Raises NotAuthentic, and ValueError for what `encode` did
    not make."""
    read = json.loads(unseal(beginning[_LENGTH_BYTES : index_bytes(beginning)], key=key, path=path))
    try:
        return Index({str(name): int(size) for name, size in read["sizes"].items()}, str(read["sha256"]))
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"its index has no {wrong}") from wrong


def decode(content: bytes, *, key: bytes, path: str) -> tuple[Index, list[Piece]]:
    """Raises as `decode_index`."""
    index = decode_index(content, key=key, path=path)
    at = index_bytes(content)
    body = memoryview(content)[at:]
    if hashlib.sha256(body).hexdigest() != index.sha256:
        raise NotAuthentic("what follows its index was changed since it was written")
    pieces = []
    for name, size in index.sizes.items():
        pieces.append(Piece.named(name, content[at : at + size]))
        at += size
    if at != len(content):
        raise ValueError(f"it has {len(content):,} bytes, and its index says {at:,}")
    return index, pieces


def object_bytes(sizes: Mapping[str, int]) -> int:
    """How large the object of such pieces is. Pure."""
    index = _encoded(sizes, hashlib.sha256().hexdigest())
    return _LENGTH_BYTES + OVERHEAD_BYTES + len(index) + sum(sizes.values())


def _encoded(sizes: Mapping[str, int], sha256: str) -> bytes:
    return json.dumps({"sizes": dict(sizes), "sha256": sha256}).encode()

"""Hashes: xxh3_128 tells damage from what was written, at 33 GB/s a core; SHA-256 names a state for people and tests.

xxh3 is no defence against someone who rewrites storage on purpose: they could rewrite the hash too. What such a writer
can do is bounded by manifest.py's checks and by nothing being unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import xxhash

from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.storage.base import Buffer

CHUNK_BYTES = 8 * 2**20  # a ranged read is verified by the chunks that it touches


def xxh3(data: Buffer) -> str:
    """xxh3_128 of the bytes, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def chunk_hashes(data: Buffer, chunk_bytes: int = CHUNK_BYTES) -> list[str]:
    """One hash per `chunk_bytes`, the last chunk being what is left; none for no bytes."""
    view = memoryview(data)
    return [xxh3(view[start : start + chunk_bytes]) for start in range(0, len(view), chunk_bytes)]


def digest(tree: Tree) -> str:
    """SHA-256, in hexadecimal, over every tensor's name, dtype, shape and bytes, in order of the names.

    Independent of sharding, devices, memory layout and of the order of dicts: equal for a model's state_dict() and for
    the same entry of a checkpoint's tree. A tied tensor counts under each of its names. Plain values do not count.
    """
    sha = hashlib.sha256()
    for name, dtype, shape, data in _sorted(tree):
        digest_entry(sha, name, dtype, shape, data)
    return sha.hexdigest()


def digest_entry(sha: hashlib._Hash, name: str, dtype: str, shape: list[int], data: Buffer) -> None:
    """Takes one tensor into a digest; they come in order of their names. `data` is its bytes, flat."""
    sha.update(f"{len(name)}:{name} {dtype} {shape} {len(data)}\n".encode("utf-8", "surrogatepass"))
    sha.update(data)


def _sorted(tree: Tree) -> Iterable[tuple[str, str, list[int], memoryview]]:
    """One tensor's bytes at a time: a tensor on a GPU is copied to the host, and let go of, before the next."""
    from elastic_checkpoint.format.tensors import (  # only here: the writer process hashes, and never loads torch
        NAMES,
        flat_bytes,
    )
    from elastic_checkpoint.format.tree import walk_tensors

    for name, tensor in sorted(walk_tensors(tree), key=lambda item: item[0]):
        dtype = NAMES.get(tensor.dtype, str(tensor.dtype))
        yield name, dtype, list(tensor.shape), flat_bytes(tensor)

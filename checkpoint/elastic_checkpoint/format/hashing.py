"""Hashes: xxh3_128 tells damage from what was written, at 33 GB/s a core; SHA-256 names a state for people and tests.

xxh3 is no defence against someone who rewrites storage on purpose: they could rewrite the hash too. What such a writer
can do is bounded by manifest.py's checks and by nothing being unpickled.

A JSON document hashes itself: {"xxh3_128":"<32 hex digits>","body":{...}}, hashed over the body's bytes and not over
values, so nobody has to agree on a canonical form. Any JSON tool reads the whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import xxhash

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.document import Tree, is_sharded
from elastic_checkpoint.storage.base import Buffer

_HEAD, _MIDDLE, _TAIL = b'{"xxh3_128":"', b'","body":', b"}"
_HASH = slice(len(_HEAD), len(_HEAD) + 32)
_BODY_START = len(_HEAD) + 32 + len(_MIDDLE)


def seal(body: dict[str, Any]) -> bytes:
    """Return the document's bytes. `body` holds only what JSON can: no NaN, no keys but strings."""
    return seal_text(to_json(body))


def to_json(value: object) -> bytes:
    """Return JSON as it lies in every document of ours: ASCII, without spaces. Raises ValueError for NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def seal_text(content: bytes) -> bytes:
    """Return the document whose body is this JSON text."""
    return _HEAD + xxh3(content).encode("ascii") + _MIDDLE + content + _TAIL


def unseal(data: bytes, what: str) -> dict[str, Any]:
    """Return the body, verified. Raises `CorruptCheckpoint` that names `what`, found and expected."""
    if not (data.startswith(_HEAD) and data[_HASH.stop : _BODY_START] == _MIDDLE and data.endswith(_TAIL)):
        raise CorruptCheckpoint(f"{what}: {len(data):,} bytes that are no document of ours, beginning {data[:32]!r}")
    content = data[_BODY_START : -len(_TAIL)]
    found, expected = xxh3(content), data[_HASH].decode("ascii", "replace")
    if found != expected:
        raise CorruptCheckpoint(f"{what}: its {len(content):,} bytes have xxh3_128 {found}, it says {expected!r}")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{what}: no JSON ({type(error).__name__}: {error})") from error
    if type(body) is not dict:
        raise CorruptCheckpoint(f"{what}: its body is a {type(body).__name__}, not an object")
    return body


CHUNK_BYTES = 8 * 2**20  # a ranged read is verified by the chunks that it touches


def xxh3(data: Buffer) -> str:
    """Return the xxh3_128 of the bytes, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def chunk_hashes(data: Buffer, chunk_bytes: int = CHUNK_BYTES) -> list[str]:
    """Return one hash per `chunk_bytes`, the last chunk being what is left; none for no bytes."""
    view = memoryview(data)
    return [xxh3(view[start : start + chunk_bytes]) for start in range(0, len(view), chunk_bytes)]


def digest(tree: Tree) -> str:
    """Return the SHA-256, in hexadecimal, over every tensor's name, dtype, shape and bytes, in order of the names.

    Independent of sharding, devices, memory layout and of the order of dicts: equal for a model's state_dict() and for
    the same entry of a checkpoint's tree. Of DTensors all their ranks call it together. A tied tensor counts under each
    of its names. Plain values do not count.
    """
    sha = hashlib.sha256()
    for name, dtype, shape, data in _sorted(tree):
        digest_entry(sha, name, dtype, shape, data)
    return sha.hexdigest()


def digest_entry(sha: hashlib._Hash, name: str, dtype: str, shape: list[int], data: Buffer) -> None:
    """Take one tensor into a digest; they come in order of their names. `data` is its bytes, flat."""
    sha.update(f"{len(name)}:{name} {dtype} {shape} {len(data)}\n".encode("utf-8", "surrogatepass"))
    sha.update(data)


def _sorted(tree: Tree) -> Iterable[tuple[str, str, list[int], memoryview]]:
    """Yield one tensor's bytes at a time: on a GPU copied to the host, or gathered, and let go of before the next."""
    from elastic_checkpoint.format.tensors import (  # only here: the writer process hashes, and never loads torch
        NAMES,
        flat_bytes,
    )
    from elastic_checkpoint.format.tree import walk_tensors

    for name, tensor in sorted(walk_tensors(tree), key=lambda item: item[0]):
        dtype = NAMES.get(tensor.dtype, str(tensor.dtype))
        whole: Any = tensor
        yield name, dtype, list(tensor.shape), flat_bytes(whole.full_tensor() if is_sharded(tensor) else whole)

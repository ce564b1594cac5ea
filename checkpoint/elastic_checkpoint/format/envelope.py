"""A JSON document that hashes itself: {"xxh3_128":"<32 hex digits>","body":{...}}, hashed over the body's bytes.

The hash covers bytes, not values, so nobody has to agree on a canonical form. Any JSON tool reads the whole.
"""

from __future__ import annotations

import json
from typing import Any

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.hashing import xxh3

_HEAD, _MIDDLE, _TAIL = b'{"xxh3_128":"', b'","body":', b"}"
_HASH = slice(len(_HEAD), len(_HEAD) + 32)
_BODY_START = len(_HEAD) + 32 + len(_MIDDLE)


def seal(body: dict[str, Any]) -> bytes:
    """The document's bytes. `body` holds only what JSON can: no NaN, no keys but strings."""
    return seal_text(to_json(body))


def to_json(value: object) -> bytes:
    """JSON as it lies in every document of ours: ASCII, without spaces. Raises ValueError for NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def seal_text(content: bytes) -> bytes:
    """The document whose body is this JSON text."""
    return _HEAD + xxh3(content).encode("ascii") + _MIDDLE + content + _TAIL


def unseal(data: bytes, what: str) -> dict[str, Any]:
    """The body, verified. Raises `CorruptCheckpoint` that names `what`, found and expected."""
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

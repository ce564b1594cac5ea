"""What an example holds, as a number: the values of all that a data set or a collate function may give."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from elastic.state.bits import memory

_QUICK_BYTES = 256 << 10
_QUICK_ITEM = 1 << 10  # bytes, which an item of a list counts as


def digest_of(example: Any) -> str | None:
    """Return XXH3-64, hexadecimal, of an example's values; None where something in it raises, or has no known bytes."""
    sha = xxhash.xxh3_64()
    try:
        return sha.hexdigest() if _fed(sha, example) else None
    except Exception:  # objects of the script's, which may raise anything
        return None


def digest_at(batch: Any, share: int, micro: int) -> int | None:
    """Digest a batch in its place within a step, in 40 bits: a float64 holds the sum of 8,192 of them."""
    digest = digest_of(batch)
    return None if digest is None else xxhash.xxh3_64_intdigest(f"{share} {micro} {digest}".encode()) >> 24


def quick_digest(batch: Any, seed: int) -> int:
    """Return XXH3-64 of a batch's values, behind what `seed` is the digest of; 0: it is not known without some cost.

    So it is where a tensor lies on a GPU, where there is more than 256 KiB, and where there is what is no tensor,
    array, number or text, nor a tuple, list or dict of such.
    """
    left = _QUICK_BYTES
    parts = [batch]
    while parts:
        part = parts.pop()
        if isinstance(part, torch.Tensor):
            if not part.is_cpu or part.layout is not torch.strided or not part.is_contiguous() or part.is_conj():
                return 0
            data, left = memory(part), left - part.nbytes
        elif isinstance(part, np.ndarray):
            if part.dtype.hasobject or part.dtype.names is not None or not part.flags.c_contiguous:
                return 0
            data, left = part.reshape(-1).view(np.uint8), left - part.nbytes
        elif isinstance(part, tuple | list | dict):
            left -= _QUICK_ITEM * len(part)
            if left < 0:
                return 0
            parts += reversed(part.values() if isinstance(part, dict) else part)
            continue
        elif part is None or isinstance(part, str | int | float):
            data = repr(part).encode()
        else:
            return 0
        if left < 0:
            return 0
        seed = xxhash.xxh3_64_intdigest(data, seed)
    return seed


def digests_of_rows(batch: Any, examples: int) -> dict[str, list[str | None]]:
    """Return, for each field of a batch, a digest of each of so many examples, or one where it is not of so many rows.

    Fields are named by where they are in the batch: "[0]", "['text']"; "" is the batch itself.
    """
    found: dict[str, list[str | None]] = {}

    def look(value: Any, where: str) -> None:
        of_rows = isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0 and len(value) == examples
        if isinstance(value, Mapping):
            for key, item in value.items():
                look(item, f"{where}[{key!r}]")
        elif of_rows or (isinstance(value, list | tuple) and len(value) == examples and not _are_fields(value)):
            found[where] = [digest_of(row) for row in value]
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                look(item, f"{where}[{at}]")
        else:
            found[where] = [digest_of(value)]

    look(batch, "")
    return found


def _are_fields(items: list[Any] | tuple[Any, ...]) -> bool:
    """Tell whether items are fields and not rows: each has as many rows as there are items, two of two, say."""
    return all(isinstance(one, torch.Tensor | np.ndarray) and one.ndim > 0 and len(one) == len(items) for one in items)


def _fed(sha: Any, value: Any) -> bool:
    """Give a value to the hash; return False where not all of it could be given."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            return False
        plain = value.detach().cpu().contiguous()
        sha.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        sha.update(plain.reshape(-1).view(torch.uint8).numpy())
        return True
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return False
        sha.update(f"{value.dtype.str}{value.shape}".encode())
        if value.dtype.names is not None:  # between fields may lie bytes that nobody has written
            fields: Any = value
            return all(_fed(sha, fields[name]) for name in value.dtype.names)
        sha.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return True
    if isinstance(value, bytes | bytearray):
        sha.update(f"b{len(value)}:".encode())
        sha.update(value)
        return True
    if value is None or isinstance(value, str | int | float | complex):
        sha.update(f"{type(value).__name__}{len(repr(value))}:{value!r}".encode())
        return True
    if isinstance(value, Mapping):
        sha.update(f"m{len(value)}".encode())
        return all(_fed(sha, key) and _fed(sha, item) for key, item in value.items())
    if isinstance(value, list | tuple):
        sha.update(f"l{len(value)}".encode())
        return all(_fed(sha, item) for item in value)
    if dataclasses.is_dataclass(value):
        return all(_fed(sha, getattr(value, one.name)) for one in dataclasses.fields(value))
    tobytes = getattr(value, "tobytes", None)  # PIL's images
    return callable(tobytes) and _fed(sha, tobytes())

"""What a step read and what it summed, as events carry it: digests for machines, a few numbers for people."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_VALUES_MAX = 16


def plain_values(sums: Mapping[str, Any]) -> dict[str, float | str]:
    """Return a step's global sums as numbers of nine digits, for people: scalars alone, and no more than a few."""
    values: dict[str, float | str] = {}
    for name, value in sums.items():
        if getattr(value, "ndim", 0) == 0 and len(values) < _VALUES_MAX:
            number = float(value)
            values[name] = float(f"{number:.9g}") if math.isfinite(number) else repr(number)
    return values


def digest_of_indices(indices: Iterable[int]) -> str:
    """Return SHA-256, hexadecimal, of example indices in order, each as a little-endian int64."""
    numbers = indices if isinstance(indices, np.ndarray) else list(indices)
    return hashlib.sha256(np.asarray(numbers, dtype="<i8").tobytes()).hexdigest()


def digest_of_sums(sums: Mapping[str, Any], count: float) -> str:
    """Return SHA-256, hexadecimal, of the bits of a step's global sums (numbers or CPU tensors) and of its count."""
    sha = hashlib.sha256(f"count {count}\n".encode())
    for name in sorted(sums):
        value = np.asarray(sums[name])
        sha.update(f"{len(name)}:{name} {value.dtype.str} {value.shape}\n".encode())
        sha.update(np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()

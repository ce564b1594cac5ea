"""What a share read and what it gave, in one number that travels in the step's row: 24 bits of a digest of each.

    share + 1 | of its batches | of its loss and sums
    16 bits     24 bits          24 bits

0 in place of a digest: it is not known. The step's exact sums stand beside these in the record; by the digests the
share is found that made the difference, and whether its examples did.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

SHARES_MAX = 256  # of a step; of runs with more, no share is on record by itself
_BITS = 24
_MASK = (1 << _BITS) - 1
HEX = _BITS // 4  # digits of a digest


def packed(share: int, read: int, gave: int) -> int:
    """Return the number of a share; never 0."""
    return (share + 1) << 2 * _BITS | _short(read) << _BITS | _short(gave)


def unpacked(number: int) -> tuple[int, int, int]:
    """Return (share, read, gave)."""
    return (number >> 2 * _BITS) - 1, number >> _BITS & _MASK, number & _MASK


def prefixes_as_text(digests: Iterable[int]) -> str:
    """Return digests in their order, of each 6 hexadecimal digits."""
    return "".join(f"{digest & _MASK:0{HEX}x}" for digest in digests)


def prefixes_from(text: str) -> tuple[int, ...]:
    """Return what prefixes_as_text wrote. Raises ValueError."""
    return tuple(int(text[at : at + HEX], 16) for at in range(0, len(text), HEX))


def _short(digest: int) -> int:
    return digest and (digest & _MASK or 1)


def both(one: int, other: int) -> int:
    """Return the digest of what two digests are of, in this order."""
    return xxhash.xxh3_64_intdigest(struct.pack("<Q", other), one)


def gave(losses: Sequence[float], values: Mapping[str, Any]) -> int:
    """Return the digest of a share's losses, and of what it has added up; 0 where there is nothing of both.

    What the run itself adds is left out.
    """
    numbers, arrays = [*losses], b""
    for name, value in values.items():
        if isinstance(value, float):
            if not name.startswith("\0"):
                numbers.append(value)
        elif not name.startswith("\0"):
            arrays += np.ascontiguousarray(value).tobytes()
    if not numbers and not arrays:
        return 0
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(numbers)}d", *numbers) + arrays)


def as_text(numbers: Iterable[int]) -> str:
    """Return the digests of a step's shares in their order: of each 6 hexadecimal digits, and 6 more."""
    return "".join(f"{number & (1 << 2 * _BITS) - 1:0{2 * HEX}x}" for number in sorted(numbers))


def from_text(text: str) -> tuple[tuple[int, int], ...]:
    """Return (read, gave) of each share. Raises ValueError."""
    numbers = [int(text[at : at + 2 * HEX], 16) for at in range(0, len(text), 2 * HEX)]
    return tuple((number >> _BITS, number & _MASK) for number in numbers)

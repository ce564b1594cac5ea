"""Small objects, read whole, whatever lies under their key: a bound on their size holds before memory is asked for.

A folder that others write to may hold anything, such as a sparse file of 200 GB where a manifest belongs. What is that
large is none of ours, and must not end the reader, nor the process. One request, as long as the object is small.
"""

from __future__ import annotations

from elastic_checkpoint.storage.base import Storage

_FIRST_BYTES = 2**20


class TooLarge(Exception):
    """The object is larger than it can be. Fields: size, most; in bytes."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"it has {size:,} bytes, and no object of this kind has more than {most:,}")
        self.size, self.most = size, most


def get_bounded(storage: Storage, key: str, most: int) -> bytes:
    """The object's bytes. Raises `Missing`, and `TooLarge` above `most` bytes, of which few are read then."""
    first_bytes = min(_FIRST_BYTES, most + 1)
    first = storage.get(key, 0, first_bytes)
    if len(first) < first_bytes:
        return first
    size = storage.size(key)
    if size > most:
        raise TooLarge(size, most)
    return first + storage.get(key, len(first), size - len(first))

"""The digests of a checkpoint that is read one tensor at a time: those that `digest` gives of it in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from elastic_checkpoint.format.dtypes import StoredDtype
from elastic_checkpoint.format.hashing import digest_entry
from elastic_checkpoint.format.leaves import Array, children, is_mapping
from elastic_checkpoint.load.stream import Stream

Named = list[tuple[str, Array]]  # in order of the paths


def digests(stream: Stream) -> tuple[str, dict[str, str]]:
    """The digest of the whole tree, and of each of its parts that holds entries of its own, among them a tensor."""
    whole = _named(stream, stream.tree, "")
    parts = {}
    if is_mapping(stream.tree):
        for key, document in children(stream.tree):
            part = _named(stream, document, "") if is_mapping(document) else []
            if part:
                parts[str(key)] = part
    whole_sha, *part_shas = _digest(stream, [whole, *parts.values()])
    return whole_sha, dict(zip(parts, part_shas, strict=True))


def _named(stream: Stream, document: object, path: str) -> Named:
    found = [(name, leaf) for name, leaf in stream.entries(document, path) if isinstance(leaf, Array)]
    return sorted(found, key=lambda item: item[0])


def _digest(stream: Stream, sequences: Sequence[Named]) -> list[str]:
    """Of each sequence of tensors. One that comes next in several is read once."""
    shas = [hashlib.sha256() for _ in sequences]
    nexts = [0] * len(sequences)
    while waiting := [number for number, next in enumerate(nexts) if next < len(sequences[number])]:
        tensor = sequences[waiting[0]][nexts[waiting[0]]][1].name
        data = stream.read(tensor).data
        for number in waiting:
            path, leaf = sequences[number][nexts[number]]
            if leaf.name == tensor:
                dtype, shape = _stored_form(leaf, len(data))
                digest_entry(shas[number], path, dtype, shape, data)
                nexts[number] += 1
    return [sha.hexdigest() for sha in shas]


def _stored_form(leaf: Array, size: int) -> tuple[str, list[int]]:
    """An array is stored, and counts, as its bytes."""
    if isinstance(leaf.dtype, StoredDtype):
        return leaf.dtype.name, list(leaf.shape)
    return "uint8", [size]

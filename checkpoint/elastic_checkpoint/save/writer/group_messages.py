"""What the writer processes of a group say to each other, as types. Which follows what:

    another rank's  Stored | Failed  ->  rank 0's           Committed | Failed  ->  all others

What arrives is one of these, whole, or whoever said it is hung up on (net/codec.py, net/server.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.format.draft import StoredObject
from elastic_checkpoint.net.codec import Vocabulary, made
from elastic_checkpoint.net.errors import check_error


@dataclass(frozen=True, kw_only=True)
class _OfSave:
    """save  its name"""

    save: str


@dataclass(frozen=True, kw_only=True)
class Stored(_OfSave):
    """This writer's part of it is stored. objects: see StoredObject.document"""

    objects: list[dict[str, Any]]

    def part(self) -> list[StoredObject]:
        """Raises NotAMessage."""
        for one in self.objects:
            made(_Object, one)
        return [StoredObject.of(one) for one in self.objects]


@dataclass(frozen=True, kw_only=True)
class Committed(_OfSave):
    """All parts are, and it can be loaded."""


@dataclass(frozen=True, kw_only=True)
class Failed(_OfSave):
    """error  see net/errors.py"""

    error: dict[str, Any]

    def __post_init__(self) -> None:
        check_error(self.error)


@dataclass(frozen=True, kw_only=True)
class _Object:
    """StoredObject.document, to be checked against."""

    size: int
    xxh3_128: str
    chunk_bytes: int
    chunks: list[str]


FROM_OTHERS: Mapping[str, type] = {"stored": Stored, "failed": Failed}
FROM_RANK_0: Mapping[str, type] = {"committed": Committed, "failed": Failed}
as_message = Vocabulary(FROM_OTHERS, FROM_RANK_0).as_message

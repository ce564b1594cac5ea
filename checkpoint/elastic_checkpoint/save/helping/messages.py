"""What who commits a save and who helps say to each other, as types. Which follows what:

an Invitation, by another channel  ->  the helper connects  ->  Offer, again and again  ->  Stored | Declined
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.format.names import CommitId, id_from
from elastic_checkpoint.net.codec import Vocabulary
from elastic_checkpoint.net.framing import NotAMessage

AT_ONCE = 4
"""Objects that a helper stores at the same time."""


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """
    endpoint     of who commits
    claim        that it holds: whoever does not find it in storage has another one
    shard_bytes  of its plan
    """

    endpoint: dict[str, Any]
    claim: dict[str, Any]
    shard_bytes: int

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise NotAMessage(f"shard_bytes is {self.shard_bytes}")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """To store object `index` of the save, if its bytes are these.

    save      CommitId's fields
    xxh3_128  of all of the object
    """

    save: dict[str, Any]
    index: int
    size: int
    xxh3_128: str

    @property
    def id(self) -> CommitId:
        """Raises NotAMessage."""
        try:
            found = id_from(self.save)
        except ValueError as wrong:
            raise NotAMessage(str(wrong)) from wrong
        if found is None:
            raise NotAMessage("no save is named")
        return found


@dataclass(frozen=True, kw_only=True)
class Stored:
    """It is. save: its name"""

    save: str
    index: int


@dataclass(frozen=True, kw_only=True)
class Declined:
    """It is not, by this helper. why: for people"""

    save: str
    index: int
    why: str


TO_HELPER: Mapping[str, type] = {"offer": Offer}
FROM_HELPER: Mapping[str, type] = {"stored": Stored, "declined": Declined}
as_message = Vocabulary(TO_HELPER, FROM_HELPER).as_message

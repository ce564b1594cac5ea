"""What the ranks that save and load together say to each other, as types. Which follows what:

    every rank: Said | Failed  ->  rank 0: Answer | Refused  ->  every rank: Heard

and HungUp at any time, from either side. What arrives is one of these, whole, or whoever said it is hung up on
(codec.py, server.py). What they agree on is for those who agree: it is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_checkpoint.net.codec import Vocabulary
from elastic_checkpoint.net.errors import check_error


@dataclass(frozen=True, kw_only=True)
class _InCall:
    """call  which one of this channel's, from 1: all ranks make the same ones"""

    call: int


@dataclass(frozen=True, kw_only=True)
class Said(_InCall):
    """what  is agreed on   said  this rank's part of it"""

    what: str
    said: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Failed(_InCall):
    """error   see errors.py
    leaves  this rank does not wait for the answer
    """

    what: str
    error: dict[str, Any]
    leaves: bool = False

    def __post_init__(self) -> None:
        check_error(self.error)


@dataclass(frozen=True, kw_only=True)
class Heard(_InCall):
    """The answer has come."""


@dataclass(frozen=True, kw_only=True)
class HungUp:
    """Nothing more comes of this rank."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Answer(_InCall):
    answer: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Refused(_InCall):
    """Nothing was agreed on.

    error    of the first rank that failed, see errors.py
    missing  the ranks that were silent or gone
    """

    error: dict[str, Any]
    missing: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_error(self.error)


FROM_RANK: Mapping[str, type] = {"said": Said, "failed": Failed, "heard": Heard, "hung_up": HungUp}
FROM_RANK_0: Mapping[str, type] = {"answer": Answer, "refused": Refused, "hung_up": HungUp}
as_message = Vocabulary(FROM_RANK, FROM_RANK_0).as_message

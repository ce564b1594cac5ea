"""What the ranks that save and load together say to each other, as types.

    every rank: Contribution | Failed  ->  rank 0: Answer | Refused  ->  every rank: Received

and HungUp at any time, from either side. What arrives is one of these, whole, or whoever said it is hung up on
(codec.py, peers.py). What they agree on is for those who agree: it is passed on as it is.
"""

from __future__ import annotations

from typing import Any

from elastic_checkpoint.net.codec import Int, Tagged, by_word
from elastic_checkpoint.net.errors import ErrorDocument


class _InCall(Tagged):
    """A message in one of this channel's calls; call: its number, from 1, as all ranks make the same ones."""

    call: Int


class Contribution(_InCall):
    """This rank's part of what is agreed on, and what that is."""

    what: str
    said: dict[str, Any]


class Failed(_InCall):
    """This rank has failed in `what`; leaves: it does not wait for the answer."""

    what: str
    error: ErrorDocument
    leaves: bool = False


class Received(_InCall):
    """The answer has come."""


class HungUp(Tagged):
    """Nothing more comes of this rank."""

    why: str


class Answer(_InCall):
    answer: dict[str, Any]


class Refused(_InCall):
    """Nothing was agreed on.

    error    of the first rank that failed
    missing  the ranks that were silent or gone
    """

    error: ErrorDocument
    missing: tuple[Int, ...] = ()


FROM_RANK = by_word(Contribution | Failed | Received | HungUp)
FROM_RANK_0 = by_word(Answer | Refused | HungUp)

"""What a training process and its writer process say to each other, as types.

    Open -> Ready | Unusable      Arena (with its descriptor)      DropArena -> ArenaDropped
    Serve | Connect -> Connected | NotConnected, and Disconnected once rank 0's writer is gone
    Staged -> Progress, again and again -> Done | Failed       CancelSave -> SaveCancelled      GiveUp

What arrives is one of these, whole, or is refused (net/codec.py). How it travels is link.py's.
"""

from __future__ import annotations

from typing import Any

from elastic_checkpoint.net.codec import Duration, Int, Tagged, by_word
from elastic_checkpoint.net.errors import ErrorDocument

# to the writer process


class Open(Tagged):
    """Open the storage; retry_s, finish_s: seconds, which may be infinite."""

    url: str
    options: dict[str, Any]
    retry_s: Duration
    finish_s: Duration
    budget_bytes: Int


class Arena(Tagged):
    """Map the arena, whose descriptor comes with this."""

    half_bytes: Int


class DropArena(Tagged):
    """Unmap the arena, which is needed no more."""


class Staged(Tagged):
    """A save, or this rank's part of one, lies whole in that half of the arena.

    id         CommitId's fields
    sizes      bytes of what lies there: this rank's files, and the two ends of the manifest's text
    all_sizes  of all files of the save
    first      the number of the first of this rank's
    """

    number: Int
    half: Int
    id: dict[str, Any]
    claim_nonce: str
    sizes: list[Int]
    all_sizes: list[Int]
    first: Int


class CancelSave(Tagged):
    """Drop a save, unless it is begun by now."""

    number: Int


class GiveUp(Tagged):
    """Give up a save that failed in this rank's training process; id: its name."""

    id: str
    error: ErrorDocument


class Serve(Tagged):
    """Have the writers of a group of `size` ranks meet here, at rank 0's."""

    size: Int


class Connect(Tagged):
    """Meet the writers of a group at rank 0's; to another rank's."""

    rank: Int
    size: Int
    endpoint: dict[str, Any]


# from the writer process


class Ready(Tagged):
    """The storage is open."""


class Unusable(Tagged):
    """The storage cannot be opened, and why."""

    why: str


class ArenaDropped(Tagged, tag="dropped_arena"):
    """Nothing of it is mapped any more."""


class Connected(Tagged):
    """The writers have met, at this endpoint."""

    endpoint: dict[str, Any]


class NotConnected(Tagged):
    why: str


class Disconnected(Tagged):
    """Rank 0's writer is gone."""


class Progress(Tagged):
    """So many bytes of this process's part, which has `of`, are stored; 0 as it begins."""

    number: Int
    stored: Int
    of: Int


class Done(Tagged):
    """The save is committed."""

    number: Int


class Failed(Tagged):
    number: Int
    error: ErrorDocument


class SaveCancelled(Tagged):
    """The answer to CancelSave; cancelled: the save was not begun."""

    number: Int
    cancelled: bool


ToWriter = Open | Arena | DropArena | Staged | CancelSave | GiveUp | Serve | Connect
FromWriter = (
    Ready | Unusable | ArenaDropped | Connected | NotConnected | Disconnected | Progress | Done | Failed | SaveCancelled
)

TO_WRITER = by_word(ToWriter)
FROM_WRITER = by_word(FromWriter)

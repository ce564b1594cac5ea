"""What a training process and its writer process say to each other, as types. Which follows what:

    Open -> Ready | Unusable      Arena (with its descriptor)      DropArena -> ArenaDropped
    Serve | Meet -> Met | NotMet, and Parted once rank 0's writer is gone
    Staged -> Progress, again and again -> Done | Failed       TakeBack -> TakenBack            GiveUp

What arrives is one of these, whole, or is refused (net/codec.py). How it travels is link.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.net.codec import Vocabulary
from elastic_checkpoint.net.errors import check_error

# to the writer process


@dataclass(frozen=True, kw_only=True)
class Open:
    """retry_s, finish_s  seconds; may be infinite"""

    url: str
    options: dict[str, Any]
    retry_s: Any
    finish_s: Any
    budget_bytes: int


@dataclass(frozen=True, kw_only=True)
class Arena:
    """Its descriptor comes with it."""

    half_bytes: int


@dataclass(frozen=True, kw_only=True)
class DropArena:
    """It is needed no more."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A save, or this rank's part of one, lies whole in that half of the arena.

    id         CommitId's fields
    sizes      bytes of what lies there: this rank's files, and the two ends of the manifest's text
    all_sizes  of all files of the save
    first      the number of the first of this rank's
    """

    number: int
    half: int
    id: dict[str, Any]
    claim_nonce: str
    sizes: list[int]
    all_sizes: list[int]
    first: int


@dataclass(frozen=True, kw_only=True)
class TakeBack:
    """Unless it is begun by now."""

    number: int


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """id: of the save that failed in this rank's training process   error: see net/errors.py"""

    id: str
    error: dict[str, Any]

    def __post_init__(self) -> None:
        check_error(self.error)


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Rank 0's: the writers of a group of `size` ranks meet here."""

    size: int


@dataclass(frozen=True, kw_only=True)
class Meet:
    """Another rank's: they meet there."""

    rank: int
    size: int
    endpoint: dict[str, Any]


# from the writer process


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The storage is open."""


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """why  it cannot be opened"""

    why: str


@dataclass(frozen=True, kw_only=True)
class ArenaDropped:
    """Nothing of it is mapped any more."""


@dataclass(frozen=True, kw_only=True)
class Met:
    """endpoint: where"""

    endpoint: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NotMet:
    why: str


@dataclass(frozen=True, kw_only=True)
class Parted:
    """Rank 0's writer is gone."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """So many bytes of this process's part, which has `of`, are stored; 0 as it begins."""

    number: int
    stored: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Done:
    """The save is committed."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Failed:
    number: int
    error: dict[str, Any]

    def __post_init__(self) -> None:
        check_error(self.error)


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """taken  before it was begun"""

    number: int
    taken: bool


ToWriter = Open | Arena | DropArena | Staged | TakeBack | GiveUp | Serve | Meet
FromWriter = Ready | Unusable | ArenaDropped | Met | NotMet | Parted | Progress | Done | Failed | TakenBack

TO_WRITER: Mapping[str, type] = {
    "open": Open,
    "arena": Arena,
    "drop_arena": DropArena,
    "staged": Staged,
    "take_back": TakeBack,
    "give_up": GiveUp,
    "serve": Serve,
    "meet": Meet,
}
FROM_WRITER: Mapping[str, type] = {
    "ready": Ready,
    "unusable": Unusable,
    "dropped_arena": ArenaDropped,
    "met": Met,
    "not_met": NotMet,
    "parted": Parted,
    "progress": Progress,
    "done": Done,
    "failed": Failed,
    "taken_back": TakenBack,
}
as_message = Vocabulary(TO_WRITER, FROM_WRITER).as_message

"""What the warm process of a node and its agent say to each other, as types. Which follows what:

    warm process:  Leaves, at any time  ->  Ready | Unfit
    agent:  a socket alone  ->  warm process:  Forked, which waits at it
    agent:  BecomeWorker, to that process

Each is one packet of a socket that keeps their borders; descriptors come beside it. What arrives is one of these,
whole, or is refused (elastic_checkpoint/net/codec.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.net.codec import Vocabulary, parse
from elastic_checkpoint.net.framing import decode, encode

PACKET_MAX, FDS_MAX = 1 << 17, 16

# from the warm process


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """why  something is left to each worker; for people"""

    why: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """It can be forked from."""


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """why  it never can"""

    why: str


@dataclass(frozen=True, kw_only=True)
class Forked:
    """pid  of the process that waits at the socket that came last"""

    pid: int


# to a process that it has forked


@dataclass(frozen=True, kw_only=True)
class BecomeWorker:
    """It is a worker now.

    env  what differs from the node's environment
    fds  what each of its descriptors is: the name of a variable, or "stdout", "stderr"
    """

    env: dict[str, str]
    fds: list[str]


FROM_WARM: Mapping[str, type] = {"leaves": Leaves, "ready": Ready, "unfit": Unfit, "forked": Forked}
TO_SPARE: Mapping[str, type] = {"become_worker": BecomeWorker}
_VOCABULARY = Vocabulary(FROM_WARM, TO_SPARE)


def packet(said: Leaves | Ready | Unfit | Forked | BecomeWorker) -> bytes:
    return encode(_VOCABULARY.as_message(said))


def read(kinds: Mapping[str, type], data: bytes) -> Any:
    """Raises NotAMessage."""
    return parse(kinds, decode(data))

"""What the fork server of a node and its agent say to each other, as types.

    fork server:  Leaves, at any time  ->  Ready | Unfit
    agent:  a socket alone  ->  fork server:  Forked, which waits at it
    agent:  BecomeWorker, to that process

Each is one packet of a socket that keeps their borders; descriptors come beside it. What arrives is one of these,
whole, or is refused (elastic_checkpoint/net/codec.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_checkpoint.net.codec import Int, Tagged, as_message, by_word, decode, encode, parse

PACKET_MAX, FDS_MAX = 1 << 17, 16

# from the fork server


class Leaves(Tagged):
    """Something is left to each worker; why: for people."""

    why: str


class Ready(Tagged):
    """The fork server can be forked from."""


class Unfit(Tagged):
    """The fork server can never be forked from, and why."""

    why: str


class Forked(Tagged):
    """A process waits at the socket that came last; pid: its number."""

    pid: Int


# to a process that it has forked


class BecomeWorker(Tagged):
    """The process is a worker now.

    env  what differs from the node's environment
    fds  what each of its descriptors is: the name of a variable, or "stdout", "stderr"
    """

    env: dict[str, str]
    fds: list[str]


FROM_FORK_SERVER = by_word(Leaves | Ready | Unfit | Forked)
TO_SPARE = by_word(BecomeWorker)


def packet(said: Tagged) -> bytes:
    """Return what is sent, to say this."""
    return encode(as_message(said))


def read(kinds: Mapping[str, type[Tagged]], data: bytes) -> Any:
    """Return what a packet says. Raises NotAMessage."""
    return parse(kinds, decode(data))

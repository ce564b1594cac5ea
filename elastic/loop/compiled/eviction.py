"""Which objects of compiled code go, so that what is new has room? A pure function of what is there.

The oldest go, until what is there and what is added keep to both limits. What this process uses of them is added again,
and is young then: what is in use stays, however old. An object that holds nothing which a younger one has not goes at
once. So of two writers that decide at the same time, the younger object of each piece stays with both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic.loop.compiled.object import object_bytes

OBJECT_BYTES = 32 << 20  # of several pieces: what a reader has when time is up is whole objects


class NoRoom(Exception):
    """What one process uses is more than the limit. Fields: nbytes, most."""

    def __init__(self, nbytes: int, most: int) -> None:
        super().__init__(f"this process uses {nbytes:,} bytes of compiled code, and at most {most:,} are kept")
        self.nbytes, self.most = nbytes, most


@dataclass(frozen=True)
class Kept:
    """An object that is there. names: of its pieces"""

    path: str
    nbytes: int
    names: frozenset[str]


@dataclass(frozen=True)
class Room:
    """
    added  objects to be written, each of which is names of pieces
    gone   paths of objects that are removed then
    """

    added: list[list[str]]
    gone: list[str]


def make_room(
    there: Sequence[Kept], used: Mapping[str, int], *, bytes_max: int, objects_max: int, besides: int = 0
) -> Room:
    """
    there    the oldest first
    used     name -> bytes, of all pieces that this process uses
    besides  bytes that lie there and cannot go
    Raises NoRoom.
    """
    stays, gone = deque(_uncovered(there)), [kept.path for kept in _covered(there)]
    while True:
        held = frozenset().union(*(kept.names for kept in stays))
        added = grouped({name: size for name, size in used.items() if name not in held})
        sizes = [object_bytes({name: used[name] for name in group}) for group in added]
        nbytes = besides + sum(kept.nbytes for kept in stays) + sum(sizes)
        if nbytes <= bytes_max and len(stays) + len(added) <= objects_max:
            return Room(added, gone)
        if not stays:
            raise NoRoom(nbytes, bytes_max)
        gone.append(stays.popleft().path)


def grouped(sizes: Mapping[str, int]) -> list[list[str]]:
    """Names, in their order, as many as make an object. Pure."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = OBJECT_BYTES
        groups[-1].append(name)
        room -= size
    return groups


def _uncovered(there: Sequence[Kept]) -> list[Kept]:
    """Those with a piece that no younger one has."""
    younger: set[str] = set()
    found = []
    for kept in reversed(there):
        if not kept.names <= younger:
            found.append(kept)
        younger |= kept.names
    return found[::-1]


def _covered(there: Sequence[Kept]) -> list[Kept]:
    stays = _uncovered(there)
    return [kept for kept in there if kept not in stays]

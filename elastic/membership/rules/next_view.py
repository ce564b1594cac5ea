"""Who is in the next view, and in which order? Pure.

Promises  workers of one node stand together; where one of the last view survives, a survivor is rank 0.
          Replicas are in a view whole or not at all, and their members stand together, by local rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

BOUNDARY = "boundary"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A worker that could be in the next view.

    shares  V of its run: a view holds no more replicas
    at      where a survivor stands, BOUNDARY for one between two steps; None for a newcomer
    """

    worker: str
    node: str
    shares: int
    at: str | None
    local_rank: int = 0


class OfReplica(Protocol):
    """A worker that has a place in a replica: those of one node whose local ranks follow each other are one."""

    @property
    def node(self) -> str: ...

    @property
    def local_rank(self) -> int: ...


_Worker = TypeVar("_Worker", bound=OfReplica)


def replicas(workers: Iterable[_Worker], size: int) -> list[list[_Worker]]:
    """Return these workers by replica: replicas in the order of their first here, members by local rank."""
    if size == 1:
        return [[worker] for worker in workers]
    found: dict[tuple[str, int], list[_Worker]] = {}
    for worker in workers:
        found.setdefault((worker.node, worker.local_rank // size), []).append(worker)
    return [sorted(members, key=lambda member: member.local_rank) for members in found.values()]


def whole(workers: Sequence[_Worker], size: int) -> list[_Worker]:
    """Return those of these workers whose replica is here with all its members, replica by replica."""
    if size == 1:
        return list(workers)
    return [member for members in replicas(workers, size) if len(members) == size for member in members]


def next_view(
    survivors: Sequence[Candidate], newcomers: Sequence[Candidate], *, replica_size: int = 1
) -> list[Candidate]:
    """Return the workers of the next view in rank order.

    survivors     of the last view, in its rank order: all of them go on whose replica is whole
    newcomers     in the order in which they join; those for whom there is no room stay outside
    replica_size  how many workers hold one copy of the state together
    """
    survivors, newcomers = whole(survivors, replica_size), whole(newcomers, replica_size)
    # between two steps alone: there a newcomer has missed nothing
    joining = newcomers if all(survivor.at == BOUNDARY for survivor in survivors) else ()
    room = replica_size * min((candidate.shares for candidate in survivors or joining), default=0)
    # sums are added inside a node before they cross the network, so its workers stand together
    blocks: dict[str, list[Candidate]] = {}
    # rank 0 is the coordinator: a survivor keeps the storage that it has open
    for candidate in (*survivors, *joining[: max(0, room - len(survivors))]):
        blocks.setdefault(candidate.node, []).append(candidate)
    return [candidate for block in blocks.values() for candidate in block]

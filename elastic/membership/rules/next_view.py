"""Who is in the next view, and in which order? Pure.

Promises  workers of one node stand together, so that sums are added inside a node before they cross the network.
          While one worker of the last view survives, a survivor is rank 0: the coordinator keeps its storage.
          A newcomer joins only at a boundary between steps, where it has missed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOUNDARY = "boundary"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A worker that could be in the next view.

    shares  V of its run: a view holds no more workers
    at      where a survivor stands, BOUNDARY for one between two steps; None for a newcomer
    """

    worker: str
    node: str
    shares: int
    at: str | None


def next_view(survivors: Sequence[Candidate], newcomers: Sequence[Candidate]) -> list[Candidate]:
    """Return the workers of the next view in rank order.

    survivors  of the last view, in its rank order: all of them go on
    newcomers  in the order in which they join; those for whom there is no room stay outside
    """
    joining = newcomers if all(survivor.at == BOUNDARY for survivor in survivors) else ()
    room = min((candidate.shares for candidate in survivors or joining), default=0)
    blocks: dict[str, list[Candidate]] = {}
    for candidate in (*survivors, *joining[: max(0, room - len(survivors))]):
        blocks.setdefault(candidate.node, []).append(candidate)
    return [candidate for block in blocks.values() for candidate in block]

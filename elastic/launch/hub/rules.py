"""Whom does an agent ask for the run's hub, for how long, and what does it answer to whoever asks? Pure.

roster_search.py, client.py and step_down.py act on it, and so do the simulated agents of tests/kit/simulated_hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from elastic.launch.hub.lease import EVICT_S
from elastic.launch.net.dialing import Address
from elastic.membership.messages.messages import HubIs

WELCOME_S = 2.0  # for an agent that has taken our hello, and may be about to become the hub
CALLER_S = 1.5  # another agent has lost the hub: if we have not within this, it is told where the hub is
TRY_S = 0.5  # for a candidate to answer; then the next one is asked
PAUSE_S = 0.5  # between two rounds of asking all candidates
MEET_S = 1.0  # between two looks for a hub that those who are missing may have
SEEK_S = 600.0  # then nobody is asked any more
HANDED_OVER_S = 5.0  # for the others to go to the next hub
_SURE_S = 1.0  # who has heard the hub since then says where it is

Candidate = tuple[str | None, Address]


class Turn(Enum):
    """What to do with a candidate; SKIP: an agent was there before this one, or it is this one, new in the run."""

    ASK, SERVE, SKIP = auto(), auto(), auto()


def candidates(
    roster: Iterable[tuple[str, Address]], met: Mapping[str, Address], lost: Iterable[str]
) -> list[Candidate]:
    """Return whom to ask for the hub, in order; last those who may be on another side of a cut.

    met   all nodes that a roster ever named
    lost  nodes that are no candidates
    """
    gone = set(lost)
    return [(name, at) for name, at in dict([*roster, *met.items()]).items() if name not in gone]


def turn(candidate: Candidate, *, node: str, own: Address, newcomer: bool) -> Turn:
    """Return whether to ask this candidate, serve in its place, or skip it.

    own       where others find this agent
    newcomer  it is not in the run yet, or not any more
    """
    name, address = candidate
    if name != node and address != own:
        return Turn.ASK
    return Turn.SERVE if name == node and not newcomer else Turn.SKIP


def is_lost(silent_s: float, *, welcome: bool) -> bool:
    """Return whether a hub is silent for too long; welcome: it has said that it is the hub."""
    return silent_s > (EVICT_S if welcome else WELCOME_S)


def answer_of_the_hub(own: Address, *, missing: bool) -> HubIs:
    """Return the hub's own answer; missing: there are nodes without whom the run may not go on."""
    return HubIs(address=own[0] or None, port=own[1], stays=missing)


def answer_of_a_node(
    with_hub: Address | None, *, welcome: bool, silent_s: float, asks: tuple[str | None, int | None] = (None, None)
) -> HubIs:
    """Return the answer of an agent that is not the hub: where it is, or that this is not known.

    with_hub  whom this agent is with   welcome, silent_s: see is_lost
    asks      where the caller listens: two who seek the hub, and have reached each other, are not sent to themselves
    """
    if with_hub is None or not welcome or silent_s >= _SURE_S or with_hub == asks:
        return HubIs()
    return HubIs(address=with_hub[0], port=with_hub[1])


def yields_to(other: HubIs, own: Address) -> bool:
    """Return whether a hub that may not go on steps down for this other one."""
    theirs = (other.address or "", other.port)
    return other.address is not None and theirs != own and (not other.stays or theirs < own)

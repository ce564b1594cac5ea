"""The rules of an agent's way to the hub. Pure: time comes in.

Whom it asks for the hub, and for how long, and what it answers to whoever asks it; since when a host counts as silent
(Lease); and when a node that has found the run full asks again (JoinWait). roster_search.py, client.py, server.py and
step_down.py act on them, and so do the simulated agents of tests/kit/simulated_hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from elastic.membership.messages.messages import HubIs
from elastic_checkpoint.net.dialing import Address

WELCOME_S = 2.0  # for an agent that has taken our hello, and may be about to become the hub
CALLER_S = 1.5  # another agent has lost the hub: if we have not within this, it is told where the hub is
TRY_S = 0.5  # for a candidate to answer; then the next one is asked
PAUSE_S = 0.5  # between two rounds of asking all candidates
MEET_S = 1.0  # between two looks for a hub that those who are missing may have
SEEK_S = 600.0  # then nobody is asked any more
REFUSED_S = 15.0  # the same for a newcomer all of whose nodes are gone: others would have said where they are by then
HANDED_OVER_S = 5.0  # for the others to go to the next hub
_SURE_S = 1.0  # who has heard the hub since then says where it is

Candidate = tuple[str | None, Address]

LEASE_S = 3.0  # for which a host may be silent: a connection to one without power does not even end
EVICT_S = LEASE_S + 0.6  # what was lost is sent again later: a cut of nearly a lease is heard through
HELD_UP_S = 1.0  # a tick that comes so late says that this process was stopped
_EXCUSED_MAX = 2  # late ticks in a row, between which a host that is there would have been heard
JOIN_PAUSE_S, JOIN_PAUSE_MAX_S = 0.5, 4.0  # between two questions of a full run: each is twice the one before


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


def in_vain(*, seeks_s: float, within_s: float, refused_s: float, newcomer: bool) -> str | None:
    """Return why a node seeks the hub no more; None: it does.

    seeks_s    for so long already, and within_s at most
    refused_s  for so long all nodes that it knows of have refused connections
    newcomer   else it serves itself, in its turn
    """
    if seeks_s > within_s:
        return f"no hub was found within {within_s:.0f} s"
    if newcomer and refused_s > REFUSED_S:
        who = "all nodes of the run that this one knows have refused connections"
        return f"for {REFUSED_S:.0f} s {who}: it is over, or lost"
    return None


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


class Lease:
    """The time since one host was heard.

    Whoever comes late to its own tick was stopped, and the hosts' words may lie unread: their leases begin anew. Not
    for ever: a process that is late each time would notice no silent host at all.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._excused = 0

    def heard(self, now_s: float) -> None:
        """Begin the lease anew, as something of the host was heard."""
        self._since_s, self._excused = now_s, 0

    def held_up(self, now_s: float) -> None:
        """Begin it anew, as this process was held up until now; not many times in a row."""
        if self._excused < _EXCUSED_MAX:
            self._since_s, self._excused = now_s, self._excused + 1

    def silent_s(self, now_s: float) -> float:
        return now_s - self._since_s


class JoinWait:
    """One node's wait for a place, for `within_s` from its first refusal on."""

    def __init__(self, now_s: float, within_s: float) -> None:
        self.within_s = within_s
        self._until_s = now_s + within_s
        self._pause_s = JOIN_PAUSE_S
        self._again_s = now_s + self._pause_s

    def is_over(self, now_s: float) -> bool:
        return now_s >= self._until_s

    def is_due(self, now_s: float) -> bool:
        """Return whether to ask now; the next question comes a pause later, as the answer may be long in coming."""
        if now_s < self._again_s:
            return False
        self._pause_s = min(2 * self._pause_s, JOIN_PAUSE_MAX_S)
        self._again_s = now_s + self._pause_s
        return True

"""What agents say to the hub, the hub to agents, and agents to each other. Which words these are is messages.py's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.membership.messages.failure import NAME_MAX, OfWorker
from elastic.membership.messages.message_checks import LIST_MAX, SLOTS_MAX, check_address, check_addresses, within
from elastic.membership.messages.wire import WireError
from elastic.membership.progress import Phase
from elastic.membership.stalls import Sighting
from elastic_checkpoint.net.codec import NUMBER_MAX, made

# agent -> hub


@dataclass(frozen=True, kw_only=True)
class Hello:
    """run     what only agents of this run know
    port    where this agent listens for others, should the hub come to be here
    slots   how many workers the node has; 0: it leaves
    starting  the slots, by local rank, whose worker is on its way
    report  what the node knows of the run, see node_report.py; None: nothing, it is new
    knows   hashes of the lists that it has, see known_lists.py
    """

    node: str = ""
    address: str | None = None
    port: int | None = None
    slots: int = 0
    starting: list[int] = field(default_factory=list)
    run: str | None = None
    report: dict[str, Any] | None = None
    knows: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        within(0, self.slots, SLOTS_MAX)
        within(0, len(self.starting), SLOTS_MAX)
        within(0, len(self.knows), LIST_MAX)
        if len(self.node) > NAME_MAX:
            raise WireError(f"a name of {len(self.node)} characters")
        if self.address is not None and self.port is not None:
            check_address(self.address, self.port)


@dataclass(frozen=True, kw_only=True)
class Started(OfWorker):
    local_rank: int

    def __post_init__(self) -> None:
        super().__post_init__()
        within(0, self.local_rank, SLOTS_MAX)


@dataclass(frozen=True, kw_only=True)
class Unstarted:
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class Exited(OfWorker):
    code: int | None = None
    signal: str | None = None
    hung: bool = False
    expected: bool = False
    step: int | None = None
    t: float | None = None
    stuck_s: float | None = None
    stopped: bool = False
    kernel: str | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class _Seen(OfWorker):
    phase: int
    step: int | None
    sign: int
    quiet_s: float
    limit_s: float | None

    def sighting(self) -> Sighting:
        within(0, self.phase, len(Phase) - 1)
        limit_s = math.inf if self.limit_s is None else self.limit_s
        return Sighting(
            worker=self.worker,
            phase=Phase(self.phase),
            step=self.step,
            sign=self.sign,
            quiet_s=self.quiet_s,
            limit_s=limit_s,
        )


@dataclass(frozen=True, kw_only=True)
class Sighted:
    workers: list[Any]

    def __post_init__(self) -> None:
        within(0, len(self.workers), SLOTS_MAX)
        _ = self.sightings

    @property
    def sightings(self) -> list[Sighting]:
        return [made(_Seen, one if isinstance(one, Mapping) else {}).sighting() for one in self.workers]


@dataclass(frozen=True, kw_only=True)
class Bye:
    """This node has no workers any more, and gets none."""


@dataclass(frozen=True, kw_only=True)
class Noted:
    """To `take_note` of that number: the view is known here, and is told to each hub that this node comes to."""

    number: int


# agent -> agent


@dataclass(frozen=True, kw_only=True)
class WhereIsTheHub:
    """run  see Hello"""

    run: str


# both ways, between an agent and the hub


@dataclass(frozen=True, kw_only=True)
class Ping:
    """Somebody is here. Said a few times per lease."""


# hub -> agent


@dataclass(frozen=True, kw_only=True)
class Roster:
    """Who is in the run, in the order in which they become the hub; and the newest view, for those who are not in it:
    the next hub may hear of it from nobody else.

    nodes       of each [name, address, port]
    generation  of the newest view
    outside     those of the nodes that have no worker in it
    away        nodes that have one, and are none of these any more
    claim       the number of its claim, where the storage is its witness
    """

    nodes: list[list[Any]]
    generation: int = 0
    outside: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    claim: int | None = None

    def __post_init__(self) -> None:
        check_addresses(self.nodes)
        within(0, len(self.outside), LIST_MAX)
        within(0, len(self.away), LIST_MAX)


@dataclass(frozen=True, kw_only=True)
class TakeNote:
    """Of the view that is to come, by a node that is in no part of it: it is counted for this one, and for no other
    that it does not know of. It takes the place of one that the same hub has asked to be noted before.

    number  of this hub's questions
    nodes   that have a worker in the view
    """

    number: int
    generation: int
    nodes: list[str]

    def __post_init__(self) -> None:
        within(1, len(self.nodes), LIST_MAX)


@dataclass(frozen=True, kw_only=True)
class Full:
    """The run has its most nodes already, and this one has no place; it may ask again.

    nodes_max  how many
    nodes      see Roster: who may be asked, should this hub be lost meanwhile
    """

    nodes_max: int
    nodes: list[list[Any]]

    def __post_init__(self) -> None:
        within(1, self.nodes_max, NUMBER_MAX)
        check_addresses(self.nodes)


@dataclass(frozen=True, kw_only=True)
class InFull:
    """This hub has not the lists that a hello names: it is to be said again, with them."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """This hub goes; the next of the roster is the hub."""


@dataclass(frozen=True, kw_only=True)
class HubIs:
    """From an agent that was asked. address: None: it is being looked for   stays: it may not go on without others
    version: of elastic-exact, there; see version.py. Whoever asks looks at it first: all else may be new to it"""

    address: str | None = None
    port: int = 0
    stays: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None:
            check_address(self.address, self.port)


@dataclass(frozen=True, kw_only=True)
class MovedOn:
    """The run has gone on without this node's workers, whom their agent tells; it may join again, with others."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """To whoever is none of this run, or calls itself as the node that it has reached: it has come to the wrong place,
    and of its own run this says nothing."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Start:
    local_rank: int

    def __post_init__(self) -> None:
        within(0, self.local_rank, SLOTS_MAX)


@dataclass(frozen=True, kw_only=True)
class Status:
    text: str


@dataclass(frozen=True, kw_only=True)
class KillHung(OfWorker):
    """For a hang. sign: its last one when it was sighted; one that has given another since is acquitted."""

    sign: int
    why: str


@dataclass(frozen=True, kw_only=True)
class RunIsOver:
    failed: bool
    why: str

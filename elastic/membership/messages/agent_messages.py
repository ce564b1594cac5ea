"""What agents say to the hub, the hub to agents, and agents to each other. Which words these are is messages.py's."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from elastic.membership.messages.message_checks import SLOTS_MAX, Names, Port, Positive, Roll, Slot, Slots
from elastic.membership.messages.worker_messages import OfWorker
from elastic.membership.stalls import Sighting
from elastic_checkpoint.net.codec import NAME_MAX, Float, Int, Name, Tagged

# agent -> hub


class Hello(Tagged):
    """A node comes to the hub, with what it knows of the run.

    run     what only agents of this run know
    port    where this agent listens for others, should the hub come to be here
    group_port  where torch.distributed's default group would meet on this node; None: its replicas have their own
    slots   how many workers the node has; 0: it leaves
    replica_size  so many of them, one after the other, are one replica
    starting  the slots, by local rank, whose worker is on its way
    report  what the node knows of the run, see node_report.py; None: nothing, it is new
    knows   hashes of the lists that it has, see known_lists.py
    """

    node: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    address: Name | None = None
    port: Port | None = None
    group_port: Port | None = None
    slots: Slot = 0
    replica_size: Positive = 1
    starting: Slots = field(default_factory=list)
    run: str | None = None
    report: dict[str, Any] | None = None
    knows: Names = field(default_factory=list)


class Started(OfWorker):
    local_rank: Slot


class Unstarted(Tagged):
    local_rank: Slot


class Exited(OfWorker):
    """A worker's process has ended; with_replica: its agent ended it, since another of its replica had ended."""

    code: Int | None = None
    signal: str | None = None
    hung: bool = False
    expected: bool = False
    step: Int | None = None
    t: Float | None = None
    stuck_s: Float | None = None
    stopped: bool = False
    kernel: str | None = None
    out_of_memory: bool = False
    with_replica: bool = False


class Sighted(Tagged):
    workers: Annotated[list[Sighting], Meta(max_length=SLOTS_MAX)]


class Bye(Tagged):
    """This node has no workers any more, and gets none."""


class Noted(Tagged):
    """The answer to that `take_note`: the view is known here, and is told to each hub that this node comes to."""

    number: Int


# agent -> agent


class WhereIsTheHub(Tagged):
    """The question to an agent where the hub is; run: see Hello."""

    run: str


# both ways, between an agent and the hub


class GroupForms(Tagged):
    """A worker has written to where torch.distributed's default group meets.

    Said by the agent that listens there, and then to all. restarts: see World.restart_count.
    """

    restarts: Int = 0


class Ping(Tagged):
    """Somebody is here. Said a few times per lease."""


# hub -> agent


class Roster(Tagged):
    """Who is in the run, in the order in which they become the hub; and the newest view.

    It is told to those who are not in it: the next hub may hear of it from nobody else.

    nodes       of each [name, address, port]
    generation  of the newest view
    outside     those of the nodes that have no worker in it
    away        nodes that have one, and are none of these any more
    claim       the number of its claim, where the storage is its witness
    """

    nodes: Roll
    generation: Int = 0
    outside: Names = field(default_factory=list)
    away: Names = field(default_factory=list)
    claim: Int | None = None


class TakeNote(Tagged):
    """The request to note the view that is to come, to a node that is in no part of it.

    It is counted for this one, and for no other that it does not know of. It takes the place of one that the same hub
    has asked to be noted before.

    number  of this hub's questions
    nodes   that have a worker in the view
    """

    number: Int
    generation: Int
    nodes: Annotated[Names, Meta(min_length=1)]


class Full(Tagged):
    """The run has its most nodes already, and this one has no place; it may ask again.

    nodes_max  how many
    nodes      see Roster: who may be asked, should this hub be lost meanwhile
    """

    nodes_max: Positive
    nodes: Roll


class InFull(Tagged):
    """This hub has not the lists that a hello names: it is to be said again, with them."""


class Handover(Tagged):
    """This hub goes; the next of the roster is the hub."""


class HubIs(Tagged):
    """The answer of an agent that was asked where the hub is.

    address  None: it is being looked for
    stays    it may not go on without others
    version  of elastic-exact, there; see version.py. Whoever asks looks at it first: all else may be new to it
    """

    address: Name | None = None
    port: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0
    stays: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not self.port:
            raise ValueError(f"no port of {self.address}")


class MovedOn(Tagged):
    """The run has gone on without this node's workers, whom their agent tells; it may join again, with others."""

    why: str


class Refusal(Tagged):
    """The answer to whoever is none of this run, or calls itself as the node that it has reached.

    It has come to the wrong place, and of its own run this says nothing.
    """

    why: str


class Start(Tagged):
    local_rank: Slot


class World(Tagged):
    """The place of a node's workers among all: they are started with what torchrun's rendezvous would tell them.

    group_rank     of this node; group_world_size: how many there are
    first_rank     of its first worker
    master_addr, master_port  of the first node, whose agent listens there
    restart_count  how often all were started again for one that was lost
    formed         torch.distributed's default group has formed before, and no run was begun
    """

    group_rank: Int
    group_world_size: Positive
    first_rank: Int
    world_size: Positive
    master_addr: Name
    master_port: Port
    restart_count: Int = 0
    formed: bool = False


class StopAll(Tagged):
    """All workers of all nodes are to end: they start again, in another world."""


class Status(Tagged):
    text: str


class KillHung(OfWorker):
    """The order to kill a worker for a hang, unless it has given a sign after `sign`, its last when it was sighted."""

    sign: Int
    why: str


class RunIsOver(Tagged):
    failed: bool
    why: str

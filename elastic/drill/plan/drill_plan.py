"""A drill's plan: on how many workers it runs, and all that is to go wrong. A value: printed, saved, replayed.

Two drills with one plan strike the same faults in the same order, whatever the timing: a fault whose moment has not
come waits, and those after it wait as well. As JSON it says its version.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from elastic.drill.faults.base import Fault
from elastic.drill.faults.host_faults import Partition
from elastic.drill.faults.plan import Plan
from elastic.drill.faults.registry import decoded, document_of, fault_of
from elastic.drill.hosts.network import HOSTS_MAX
from elastic.errors import ConfigError
from elastic.events.words import counted

VERSION = 1
_KEY = "elastic_drill"


@dataclass(frozen=True, kw_only=True)
class StorageFaults:
    """The probabilities with which each operation on the run's storage suffers, one for each way.

    errors  it fails as storage does on a bad day: timed out, reset, told to slow down, an answer that was lost
    stalls  it takes `stall_s` longer
    torn    a write leaves half of the object behind, and fails
    stale   a listing shows what the one before it showed
    """

    errors: float = 0.0
    stalls: float = 0.0
    torn: float = 0.0
    stale: float = 0.0
    stall_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("errors", "stalls", "torn", "stale"):
            chance = getattr(self, name)
            if not 0 <= chance < 1:
                raise ConfigError(f"storage {name}: a probability is from 0 to below 1; found {chance}")

    @property
    def any(self) -> bool:
        return any((self.errors, self.stalls, self.torn, self.stale))

    def __str__(self) -> str:
        said = [
            f"{getattr(self, name):.1%} of {what}"
            for name, what in (
                ("errors", "all operations fail"),
                ("stalls", f"them take {self.stall_s:g} s longer"),
                ("torn", "writes are torn"),
                ("stale", "listings are stale"),
            )
            if getattr(self, name)
        ]
        return "storage: " + (", ".join(said) or "as it is")


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """The plan of a drill: the sizes of the run with faults, and all that is to go wrong in it.

    workers         in all, at the start, on `nodes` nodes: agents, all on this machine
    hosts           each node is a host of a network of its own
    replica_size    so many workers hold one copy of the state together
    resume_workers  after everything was lost
    seed            what the faults were drawn from; of the storage's chances, too. None: nothing was drawn
    grace_s         after which a worker that was told to leave and is still there is killed
    save_every      how often the run saves: steps, or a time such as "5s"; None: what the script says
    """

    workers: int = 4
    nodes: int = 1
    hosts: bool = False
    replica_size: int = 1
    resume_workers: int = 4
    seed: int | None = None
    grace_s: float = 30.0
    save_every: str | None = None
    storage: StorageFaults = field(default_factory=StorageFaults)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if min(self.workers, self.nodes, self.resume_workers, self.replica_size) < 1:
            raise ConfigError(
                "workers, nodes, workers to resume with and those of a replica are 1 or more; found "
                f"{self.workers}, {self.nodes}, {self.resume_workers} and {self.replica_size}"
            )
        if self.workers % self.nodes:
            nodes = counted(self.nodes, "host" if self.hosts else "node")
            raise ConfigError(f"{self.workers} workers cannot be spread evenly over {nodes}")
        self._check_replicas()
        if self.hosts:
            self._check_hosts()
        most = max(self.workers + self.joining(), self.resume_workers + self.joining())
        for fault in self.faults:
            highest = max(fault.ranks)
            if highest >= most:
                raise ConfigError(
                    f"{fault}: there is no worker {highest}; they are counted from 0, and at most {most} are there"
                )

    def _check_replicas(self) -> None:
        """Raise ConfigError where a node, or the run after all was lost, would have a part of a replica."""
        size, of_a_node = self.replica_size, self.workers // self.nodes
        places: list[tuple[int, object]] = [(of_a_node, "a node"), (self.resume_workers, "what is resumed")]
        places += [(fault.joining(of_a_node), fault) for fault in self.faults]
        for workers, where in places:
            if workers % size:
                raise ConfigError(
                    f"{where}: {counted(workers, 'worker')}, and a replica has {size} (--replica-size), all on one node"
                )

    def _check_hosts(self) -> None:
        """Raise ConfigError for what cannot be where nodes are hosts."""
        if self.nodes < 2:
            raise ConfigError(f"hosts are 2 or more; found {self.nodes}")
        if self.storage.any:
            raise ConfigError("storage faults and hosts: storage decides there which side goes on; choose one of them")
        joins = sum(fault.joining(1) > 0 for fault in self.faults)
        if self.nodes + joins > HOSTS_MAX:
            raise ConfigError(f"hosts are {HOSTS_MAX} at most, with those that join; found {self.nodes + joins}")
        of_a_node = self.workers // self.nodes
        for fault in self.faults:
            side = {rank // of_a_node for rank in fault.ranks}
            if isinstance(fault, Partition) and len(side) == self.nodes + joins:
                raise ConfigError(f"{fault}: these are all hosts, so nobody is on the other side")
        if sum(fault.needs_hosts and fault.takes_node for fault in self.faults) >= self.nodes + joins:
            raise ConfigError("nobody would be left: fewer hosts may be lost for good than there are")

    def sizes(self) -> dict[str, int]:
        """Return what decides, beside the seed, whom faults can strike; see draw_faults."""
        names = ("workers", "nodes", "resume_workers", "replica_size")
        return {name: getattr(self, name) for name in names}

    def joining(self) -> int:
        """Return how many workers come with all the nodes that join."""
        return sum(fault.joining(self.workers // self.nodes) for fault in self.faults)

    def for_workers(self) -> Plan:
        """Return what the workers are told of the plan: its faults, and its seed."""
        return Plan(self.faults, self.seed)

    def to_json(self) -> str:
        document = {_KEY: VERSION, **asdict(self), "faults": [document_of(fault) for fault in self.faults]}
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DrillPlan:
        """Return the plan that to_json wrote. Raises ConfigError, which says where it is none."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"not a drill's plan: {error}") from error
        if not isinstance(document, dict) or _KEY not in document:
            raise ConfigError(f'not a drill\'s plan: no "{_KEY}", which says its version')
        version = document.pop(_KEY)
        if version != VERSION:
            raise ConfigError(f"a drill's plan of version {version!r}; this elastic reads version {VERSION}")
        faults = document.pop("faults", None)
        if not isinstance(faults, list):
            raise ConfigError("not a drill's plan: faults are a list")
        struck = tuple(fault_of(one, f"faults[{at}]") for at, one in enumerate(faults))
        plan: DrillPlan = decoded(cls, {**document, "faults": struck}, "the plan", leave=("faults",))
        return plan

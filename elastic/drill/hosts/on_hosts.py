"""The nodes of a drill's run on hosts: each is the machine of one, and those that join come on new ones.

They meet at the first host. The run's folder, by which they find each other later, all of them have: whatever becomes
of a cable, it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from elastic.drill.hosts.hosts import Hosts, Machine, Outcome
from elastic.drill.hosts.network import host_of, name
from elastic.drill.machine.leftovers import OF_LOADERS, SEMAPHORE, SHARED_MEMORY, TORCH_S_OWN
from elastic.drill.machine.processes import pid_in

PORT = 29400


class OnHosts:
    """The hosts that the nodes of one run are on, a NodeHosting; `hosts` are closed with it."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.endpoint = f"{name(1)}:{PORT}"
        self.machines: dict[int, Machine] = {}  # of this launch, by host

    def begin(self) -> None:
        self.machines = {}
        self.hosts.heal()

    def environment(self) -> Mapping[str, str]:
        return {"TMPDIR": "/var/tmp"}

    def start(self, command: Sequence[str], *, env: Mapping[str, str], output: Path) -> Machine:
        host = len(self.machines) + 1
        if host not in self.hosts.numbers:
            self.hosts.add()
        self.machines[host] = self.hosts.start(host, command, env=env, output=output)
        return self.machines[host]

    def pid(self, worker: str) -> int:
        return self.hosts.pid_outside(host_of(worker), pid_in(worker)) or 0

    def left_behind(self, *, killed: bool) -> list[str]:
        outcomes = ((host, machine.outcome) for host, machine in self.machines.items())
        return [what for host, one in outcomes if one is not None for what in left_behind_on(host, one, killed=killed)]

    def close(self) -> None:
        self.hosts.close()


def left_behind_on(host: int, outcome: Outcome, *, killed: bool = False) -> list[str]:
    """Return what a host's machine left that nobody will remove, in words.

    killed  workers were: the next one there removes what their loader processes left, and a semaphore that one was
            about to make is nobody's
    """
    loaders = killed and any(OF_LOADERS in what for what in outcome.left_behind)
    found = [what for what in outcome.left_behind if TORCH_S_OWN not in what]
    if killed:
        found = [what for what in found if not what.startswith(f"{SHARED_MEMORY}/{SEMAPHORE}")]
    if loaders:
        found = [what for what in found if OF_LOADERS not in what and not what.startswith(f"{SHARED_MEMORY}/torch_")]
    return [f"{what} of {name(host)}" for what in found]

"""Keeps one agent of `elastic run` on each node of a Ray cluster, until the run is finished.

    python deploy/ray/train.py RUN /app/train.py RUN     on a node of the cluster, or by `ray job submit`

A node that appears gets an agent, which joins the run; one that Ray drains is told to leave, and its workers do so
after the current step; one that is lost costs the others a fraction of a second, for they hear of it long before Ray
does. The agents meet by the run's URL: no node is special but the one with this program, which goes on when it is
started again.

It ends with 0 once the run is finished, 2 for what cannot be done as asked, 1 where agents failed more often than
--failures says, and 75 after a signal: the same command goes on.

Tried with Ray 2.60.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

FINISHED, FAILED, USAGE, AGAIN = 0, 1, 2, 75
LOOK_S = 0.5
AGAIN_AFTER_S = 10.0  # after a failure
END_S = 60.0  # for the other agents, once one of them has seen the run's end
SAVE_S = 120.0  # for all of them to save and leave, after a signal


@ray.remote(max_restarts=0, max_concurrency=2)
class Agent:
    """One `elastic run` on one node. It leaves when this actor ends, however that does."""

    def __init__(self) -> None:
        self._notice = os.path.join(tempfile.gettempdir(), f"elastic-notice-{secrets.token_hex(8)}")

    def run(self, flags: list[str], command: list[str], variables: dict[str, str]) -> int:
        """Run the agent to its end, and return its exit status. variables: of its environment, beside the node's."""
        told = ["setpriv", "--pdeathsig", "TERM", *flags, f"--notices=auto,file:{self._notice}", *command]
        try:
            with ThreadPoolExecutor(1) as alive:
                # The kernel sends that signal when the thread that has started the agent ends: this one waits for it.
                return alive.submit(subprocess.call, told, env={**os.environ, **variables}).result()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._notice)

    def leave(self, within_s: float | None, why: str) -> None:
        """Tell the agent that this node is to go."""
        beside = self._notice + ".new"
        with open(beside, "w") as file:
            file.write(f"leave {'' if within_s is None else f'{max(within_s, 1):.0f} '}{why}\n")
        os.replace(beside, self._notice)


@dataclass
class Running:
    actor: Any
    status: Any  # to come: the agent's exit status
    is_leaving: bool = False


class Fleet:
    """One agent for each node that has room for it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._running: dict[str, Running] = {}
        self._not_before_s: dict[str, float] = {}  # by node
        self._failures = 0

    def look(self) -> int | None:
        """Start agents where one is missing, and pass notices on; return the exit status, once there is one."""
        draining = draining_nodes()
        for node in ray.nodes():
            name = node["NodeID"]
            if node["Alive"] and name not in draining and name not in self._running and self._has_room(node):
                self._start(name)
        for name, deadline_ms in draining.items():
            if (running := self._running.get(name)) is not None and not running.is_leaving:
                running.is_leaving = True
                self._say(name, "is being drained: its workers leave")
                running.actor.leave.remote(
                    deadline_ms / 1e3 - time.time() if deadline_ms else None, "Ray drains the node"
                )
        return self._ended()

    def leave(self, within_s: float, why: str) -> None:
        """Tell all agents to leave, and wait until they have, for so long at most."""
        for running in self._running.values():
            running.actor.leave.remote(within_s, why)
        self.wait(within_s)

    def wait(self, within_s: float) -> None:
        """Wait for agents that are about to end, for so long at most."""
        until_s = time.monotonic() + within_s
        while self._running and time.monotonic() < until_s:
            self._ended()

    def _has_room(self, node: dict[str, Any]) -> bool:
        """Return whether the node has what an agent takes, and no agent has failed there a moment ago."""
        wanted = {"CPU": self._options.cpus, "GPU": self._options.gpus}
        has = node["Resources"]  # all that it has: one agent of ours is there at most, and Ray knows what else runs
        return time.monotonic() >= self._not_before_s.get(node["NodeID"], 0) and all(
            has.get(kind, 0) >= count for kind, count in wanted.items()
        )

    def _start(self, name: str) -> None:
        options = self._options
        actor = Agent.options(  # type: ignore[attr-defined]  # what the decorator has made of it
            num_cpus=options.cpus,
            num_gpus=options.gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False),
        ).remote()
        self._running[name] = Running(actor, actor.run.remote(agent_flags(options), options.command, own_variables()))
        self._say(name, "starts an agent")

    def _ended(self) -> int | None:
        """Wait a moment for agents that end; return the exit status that this gives the program, if it does."""
        by_status = {running.status: name for name, running in self._running.items()}
        if not by_status:
            time.sleep(LOOK_S)
            return None
        ready, _ = ray.wait(list(by_status), timeout=LOOK_S)
        for future in ready:
            name = by_status[future]
            del self._running[name]
            try:
                status = ray.get(future)
            except RayActorError:
                self._say(name, "is lost, or its actor")
                continue
            except RayTaskError as failure:
                self._say(name, f"has no agent: {failure.cause}")
                return USAGE
            self._say(name, f"has an agent no more, which ended with {status}")
            if status in (FINISHED, USAGE):
                return int(status)
            if status != AGAIN:
                self._failures += 1
                self._not_before_s[name] = time.monotonic() + AGAIN_AFTER_S
                if self._failures > self._options.failures:
                    return FAILED
        return None

    def _say(self, name: str, what: str) -> None:
        print(f"node {name[:8]} {what}", file=sys.stderr, flush=True)


def agent_flags(options: argparse.Namespace) -> list[str]:
    """Return `elastic run` and its flags, but for where its notices come from."""
    return [
        options.elastic,
        "run",
        f"--nnodes=1:{options.nodes_max}",
        f"--nproc-per-node={'gpu' if options.gpus else options.workers}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={options.run}",
        f"--rdzv-id={options.id or options.run}",
        f"--leave-status={AGAIN}",
        "--no-status",
    ]


def own_variables() -> dict[str, str]:
    """Return this process's variables of elastic's, for the agents; ELASTIC_SECRET is one of them."""
    # handed over as an argument they are in no runtime environment, which Ray's dashboard shows
    return {name: value for name, value in os.environ.items() if name.startswith("ELASTIC_")}


def draining_nodes() -> dict[str, int]:
    """Return when each node that Ray drains goes, by its id, in milliseconds since 1970; 0: nobody says."""
    # Ray 2.60 has no public way to ask; Ray Train asks so, too
    return dict(ray._private.state.state.get_draining_nodes())


def main() -> int:
    """Keep the agents until the run is finished, or cannot go on; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="the run's URL or folder: the agents meet there")
    parser.add_argument("command", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="or -m MODULE, and arguments")
    parser.add_argument("--nodes-max", type=int, default=64, help="most nodes of the run (%(default)s)")
    parser.add_argument("--cpus", type=float, default=1, help="that an agent takes of its node (%(default)s)")
    parser.add_argument("--gpus", type=float, default=0, help="the same; there is a worker for each GPU (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="on each node, where there is no GPU (%(default)s)")
    parser.add_argument("--id", help="of the run (default: its URL)")
    parser.add_argument("--failures", type=int, default=6, help="of agents that are started again (%(default)s)")
    parser.add_argument("--elastic", default="elastic", help="the command, as the nodes find it (%(default)s)")
    parser.add_argument("--address", help="of the cluster (default: Ray's own rules)")
    options = parser.parse_args()
    if not options.command:
        parser.error("there is no script: RUN train.py ARGUMENTS, or RUN -m MODULE ARGUMENTS")

    ray.init(address=options.address, log_to_driver=True)
    fleet = Fleet(options)
    told: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(signal.Signals(number).name))
    try:
        while (status := fleet.look()) is None:
            if told:
                fleet.leave(SAVE_S, f"{told[0]} to the program that keeps the agents")
                return AGAIN
        if status == FINISHED:
            fleet.wait(END_S)
        return status
    finally:
        ray.shutdown()  # and with it the actors, whose agents leave


if __name__ == "__main__":
    sys.exit(main())

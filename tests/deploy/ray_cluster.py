"""Runs deploy/ray/train.py on a Ray cluster of this machine's, whose nodes come and go: ray_cluster.py ARGUMENTS...

In Ray's own environment. Three raylets; one is killed, another one added, and one drained; then the program is told to
end and started again, and the run is let finish.
What it does and sees goes to standard output, a line of JSON each; everything else to standard error.

    kill    once three nodes train      waits until two do
    add     another node                waits until three do
    drain   one of the first            waits until two do

How many train is what the script under test writes into a folder: NODES, a file for each worker of the newest step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

WITHIN_S, POLL_S = 200.0, 0.1


def main(train: str, seen: Path, *arguments: str) -> int:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    fleet: subprocess.Popen[bytes] | None = None
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
        command = [sys.executable, train, f"--address={cluster.address}", *arguments]
        fleet = subprocess.Popen(command, stdout=sys.stderr)
        until(fleet, lambda: world_size(seen) == 3)
        cluster.remove_node(nodes[0], allow_graceful=False)
        until(fleet, lambda: world_size(seen) == 2)
        say(killed=nodes[0].node_id)
        cluster.add_node(num_cpus=1)
        until(fleet, lambda: world_size(seen) == 3)
        say(added=True)
        drain(cluster.address, nodes[1].node_id)
        until(fleet, lambda: world_size(seen) == 2)
        say(drained=nodes[1].node_id)
        fleet.terminate()
        say(told=fleet.wait(WITHIN_S))
        (seen / "hurry").touch()
        fleet = subprocess.Popen(command, stdout=sys.stderr)
        status = fleet.wait(WITHIN_S)
        say(status=status)
        return status
    finally:
        if fleet is not None:
            fleet.kill()
            fleet.wait()
        ray.shutdown()
        cluster.shutdown()


def drain(address: str, node: str) -> None:
    """As whoever takes machines does."""
    ray_command = str(Path(sys.executable).with_name("ray"))
    why = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot", "--deadline-remaining-seconds=60"]
    subprocess.run(
        [ray_command, "drain-node", f"--address={address}", f"--node-id={node}", *why], check=True, stdout=sys.stderr
    )


def world_size(seen: Path) -> int:
    with_size = seen / "world_size"
    return int(with_size.read_text() or 0) if with_size.exists() else 0


def until(fleet: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        if fleet.poll() is not None:
            raise RuntimeError(f"train.py ended with {fleet.returncode}")
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {WITHIN_S:g} s")
        time.sleep(POLL_S)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))

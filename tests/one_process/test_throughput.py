"""The loops that benchmarks take in turns, in one process with two runs whose rules are strict."""

from tests.benchmarks.throughput import Peer, measured
from tests.benchmarks.workloads import workloads


def test_a_run_and_its_peers_take_turns() -> None:
    workload = workloads()["digits"]
    cycles = 4
    found = measured(workload, "exact", {"accumulated": Peer(workload, 8, 0, 1)}, cycles, 1)
    assert {name: len(blocks) for name, blocks in found["seconds"].items()} == dict.fromkeys(
        ["exact", "exact, plain", "accumulated"], cycles
    )

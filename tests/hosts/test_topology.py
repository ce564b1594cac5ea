"""Between hosts of several workers go as few bytes as can be, and what they add up to has the bits of one host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.end import End
from tests.kit.crossing import crossing
from tests.kit.host_runs import HostRun
from tests.kit.hosts import Hosts

pytestmark = pytest.mark.nightly(sample=1, of="hosts in rarer trouble")

STEPS = 240
WIDE = 8192  # its gradients are worth the way by host


def test_each_host_sends_its_gradients_once(hosts: Callable[[int], Hosts], tmp_path: Path) -> None:
    """Two of two workers: half of them to the other's sum, and half of the sum. A ring sends 1.5 times as much."""
    two = hosts(2)
    together = crossing(two, 2, tmp_path / "two")
    alone = crossing(two, 1, tmp_path / "one", workers=4)

    assert together.digest == alone.digest
    assert max(together.bytes) < 1.05 * together.weights
    assert min(together.bytes) > 0.95 * together.weights, "it is measured"


def test_hosts_of_several_workers_crash_and_come_back(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """Sums that are under way in all their stages are given up with the step."""
    run = host_run(3, nodes="1:3", steps=STEPS, workers=2, script=[f"--width={WIDE}"])
    run.join(1, 2, 3)
    run.wait_for_steps(1, 1, 2, 2, 3, 3)
    run.hosts.crash(3)
    run.wait_for_steps(1, 1, 2, 2)
    run.hosts.crash(1)
    run.wait_for_steps(2, 2)
    run.join(3)
    run.wait_for_steps(2, 2, 3, 3)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7, width=WIDE).events, lost=4)

    run.assert_kept(end, ended=[2, 3])
    assert end.verdict.redone <= 2

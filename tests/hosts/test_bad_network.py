"""A network that is neither there nor away: in one direction only, with losses, or slow. Never two sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.end import End
from elastic.drill.hosts.network import Way, host_of
from tests.kit.host_runs import HostRun

pytestmark = pytest.mark.nightly(sample=1, of="hosts in rarer trouble")

STEPS = 240


@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("host", [3, 1])
def test_a_cable_that_is_cut_in_one_direction_evicts_its_host(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], way: Way, host: int
) -> None:
    run = host_run(4, nodes="1:4", steps=STEPS)
    run.join(1, 2, 3, 4)
    run.wait_for_steps(1, 2, 3, 4)
    run.hosts.cut_one_way(host, way)
    run.wait_for_steps(*sorted({1, 2, 3, 4} - {host}))
    run.hosts.heal(host)
    run.wait_for_steps(1, 2, 3, 4)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=[1, 2, 3, 4])
    run.assert_only_the_step_in_flight_was_redone(end)


def test_a_slow_network_is_slow_and_nothing_else(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """50 ms each way, of the hub's host and of another: nobody is lost."""
    run = host_run(3, nodes="1:3", steps=30)
    run.hosts.delay(1, 0.05)
    run.hosts.delay(3, 0.05)
    run.join(1, 2, 3)
    view = run.wait_for_steps(1, 2, 3, steps=4)
    end = run.finish(reference=elastic_undisturbed(steps=30, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, 2, 3])
    assert (run.generation, end.verdict.redone) == (view, 0)


def test_a_host_that_loses_packets_makes_progress_or_is_lost(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """30 % of them, in both directions. TCP may or may not cope; one that is lost comes back, with its cable healed."""
    run = host_run(3, nodes="1:3", steps=STEPS)
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    run.hosts.lose_packets(3, 0.3)
    applied = run.applied()
    run.wait_for("five steps more", lambda _: run.applied() >= applied + 5)
    run.hosts.heal(3)
    run.wait_for_steps(1, 2, 3)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=None)

    run.assert_kept(end, ended=[1, 2, 3])
    finished = {event["worker"] for event in end.events if event["event"] == "finished"}
    lost = {event["worker"] for event in end.events} - finished
    # It may be taken for lost after it was healed, too: what it did not say in time was still under way.
    assert {host_of(worker) for worker in lost} <= {3}
    assert end.verdict.redone <= len(lost)

"""Hosts join, below and at the maximum, and are told to stop: nobody is lost, and no step is done again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.end import End
from elastic.drill.hosts.network import host_of
from tests.kit.host_runs import HostRun

STEPS = 240


@pytest.mark.nightly(sample=2, of="hosts that come, crash or fall silent")
def test_hosts_join_and_are_told_to_stop(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """One joins below the maximum; another finds the run full, and waits until there is room."""
    run = host_run(4, nodes="1:3", steps=STEPS)
    run.join(1, 2)
    run.wait_for_steps(1, 2)
    run.join(3)
    full = run.wait_for_steps(1, 2, 3)
    run.join(4)
    run.wait_for("a host that waits", lambda _: "the run has its 3 nodes already: this node waits" in run.output(4))
    assert run.wait_for_steps(1, 2, 3) == full
    run.hosts.terminate(2)
    assert run.wait_for_end(2).status == 0
    run.wait_for_steps(1, 3, 4)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, 2, 3, 4])
    assert [host_of(event["worker"]) for event in end.events if event["event"] == "left"] == [2]
    assert end.verdict.redone == 0


@pytest.mark.nightly
def test_ten_hosts_join_and_leave_in_a_row(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    run = host_run(2, nodes="1:2", steps=4 * STEPS)
    run.join(1)
    run.wait_for_steps(1)
    guests = [2, *(run.hosts.add() for _ in range(9))]
    for guest in guests:
        run.join(guest)
        run.wait_for_steps(1, guest)
        run.hosts.terminate(guest)
        assert run.wait_for_end(guest).status == 0
    run.wait_for_steps(1)
    end = run.finish(reference=elastic_undisturbed(within_s=600, steps=4 * STEPS, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, *guests])
    assert end.verdict.redone == 0

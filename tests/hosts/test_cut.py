"""Cables are cut, silently: no connection is reset."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from elastic.drill.end import End
from tests.kit.host_runs import HostRun

STEPS = 240
LEASE_S = 3.0


@pytest.mark.nightly(sample=2, of="hosts that come, crash or fall silent")
def test_a_cut_shorter_than_the_lease_is_a_pause(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """Of a host, of the hub's, and of one again and again: the view stays, and no step is done again."""
    run = host_run(3, nodes="1:3", steps=STEPS)
    run.join(1, 2, 3)
    view = run.wait_for_steps(1, 2, 3)
    for host, cut_s in ((3, 1.0), (1, 1.0), *[(2, 0.3)] * 4, *[(1, 0.6)] * 4):
        begun = time.monotonic()
        run.hosts.cut(host)
        time.sleep(cut_s)
        run.hosts.heal(host)
        if time.monotonic() - begun > LEASE_S / 2:
            pytest.skip("this machine is too busy to make a cut that is short")
        assert run.wait_for_steps(1, 2, 3) == view
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, 2, 3])
    assert end.verdict.redone == 0


@pytest.mark.nightly(sample=2, of="hosts that come, crash or fall silent")
@pytest.mark.parametrize("way", ["both", "power"])
def test_a_host_that_is_silent_is_lost(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], way: str
) -> None:
    """Cut off, it comes back as a newcomer when it is healed; without power, it never does."""
    run = host_run(4, nodes="1:4", steps=STEPS)
    run.join(1, 2, 3, 4)
    before = run.wait_for_steps(1, 2, 3, 4)
    run.hosts.cut(4) if way == "both" else run.hosts.lose_power(4)
    assert run.wait_for_steps(1, 2, 3) == before + 1
    if way == "both":
        run.hosts.heal(4)
        run.wait_for_steps(1, 2, 3, 4)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=[1, 2, 3, 4] if way == "both" else [1, 2, 3])
    run.assert_only_the_step_in_flight_was_redone(end)


@pytest.mark.nightly(sample=2, of="hosts that come, crash or fall silent")
def test_two_of_five_hosts_are_silent_together(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    run = host_run(5, nodes="1:5", steps=STEPS)
    run.join(1, 2, 3, 4, 5)
    before = run.wait_for_steps(1, 2, 3, 4, 5)
    run.hosts.lose_power(3, 5)
    assert run.wait_for_steps(1, 2, 4) == before + 1
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=2)

    run.assert_kept(end, ended=[1, 2, 4])
    run.assert_only_the_step_in_flight_was_redone(end)

"""Hosts crash: all that runs there dies at once, and the network resets what was open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.end import End
from tests.kit.host_runs import HostRun

STEPS = 240


@pytest.mark.nightly(sample=2, of="hosts that come, crash or fall silent")
def test_hosts_crash_and_the_others_go_on(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """One, and two together: each is one generation, and survivors do the step in flight again at most. They are the
    same processes all along."""
    run = host_run(5, nodes="1:5", steps=STEPS)
    run.join(1, 2, 3, 4, 5)
    before = run.wait_for_steps(1, 2, 3, 4, 5)
    survivors = run.workers_of(1, 4)
    run.hosts.crash(3)
    without_one = run.wait_for_steps(1, 2, 4, 5)
    for host in (2, 5):  # else the one whose processes the kernel ends later answers meanwhile, and is in a view more
        run.hosts.freeze(host)
    run.hosts.crash(2, 5)
    without_three = run.wait_for_steps(1, 4)
    assert run.workers_of(1, 4) == survivors, run.state()
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=3)

    run.assert_kept(end, ended=[1, 4])
    assert (without_one - before, without_three - without_one) == (1, 1)
    assert end.verdict.redone <= 2

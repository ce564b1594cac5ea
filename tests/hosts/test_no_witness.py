"""Each host has a folder of its own, so that no storage can tell two sides apart: a strict majority goes on, or nobody.

The coordinator, whose folder has what is saved, is on the first host, and stays.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.end import End
from tests.kit.host_runs import HostRun

pytestmark = pytest.mark.nightly(sample=1, of="hosts in rarer trouble")

STEPS = 240
NOT_SHARED = "the folder is not shared"


def test_three_of_five_go_on_without_a_witness(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """The two wait, and join the three when the network is whole again."""
    run = host_run(5, nodes="1:5", steps=STEPS, shared=False)
    run.join(1, 2, 3, 4, 5)
    before = run.wait_for_steps(1, 2, 3, 4, 5)
    assert any(NOT_SHARED in run.output(host) for host in (1, 2, 3, 4, 5)), run.state()
    run.hosts.partition([1, 2, 3], [4, 5])
    assert run.wait_for_steps(1, 2, 3) == before + 1
    run.wait_for("the two say why they wait", lambda _: "2 of the 5 nodes" in run.output(4) + run.output(5))
    run.hosts.heal()
    run.wait_for_steps(1, 2, 3, 4, 5)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=2, saved_by=1)

    run.assert_kept(end, ended=[1, 2, 3, 4, 5])
    run.assert_only_the_step_in_flight_was_redone(end)


def test_a_crashed_host_of_three_is_gone_on_without_and_one_that_is_left_alone_waits(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """The machine of the second one refuses connections, as a firewall would with which somebody cuts them off: that it
    is dead is no proof. A third one that comes to it is no help, as it was not in their view."""
    run = host_run(4, nodes="1:3", steps=STEPS, shared=False)
    run.join(1, 2, 3)
    before = run.wait_for_steps(1, 2, 3)
    run.hosts.crash(3)
    assert run.wait_for_steps(1, 2) == before + 1
    run.hosts.crash(2)
    run.wait_for("the last one says why it waits", lambda _: "the run stands still: 1 of the 2 nodes" in run.output(1))
    run.join(4)
    run.wait_for("the other one is there", lambda events: any(e["worker"].startswith("h4-") for e in events))
    assert run.generation == before + 1

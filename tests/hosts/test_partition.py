"""The network falls apart: one side goes on, and the other waits, says why, and rejoins without a step done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from elastic.drill.end import End
from tests.kit.host_runs import HostRun
from tests.kit.sampling import NIGHTLY

pytestmark = pytest.mark.nightly(sample=1, of="sides of a cut")

STEPS = 240
GONE_ON = "others have gone on with the run"
LOOKS = "this node joins the run again as soon as it reaches the others"
LOOKS_MORE = 8 if NIGHTLY else 3
NO_HUB = "the connection to the run's hub is lost: nothing was heard of it"


@pytest.mark.parametrize("majority", [(1, 2, 3), (3, 4, 5)], ids=["hub in the majority", "hub in the minority"])
def test_the_majority_of_five_goes_on(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], majority: Sequence[int]
) -> None:
    run = host_run(5, nodes="1:5", steps=STEPS)
    run.join(1, 2, 3, 4, 5)
    before = run.wait_for_steps(1, 2, 3, 4, 5)
    minority = sorted({1, 2, 3, 4, 5} - {*majority})
    run.hosts.partition(majority, minority)
    assert run.wait_for_steps(*majority) == before + 1
    run.wait_for("the others say why they wait", lambda _: any("no majority" in run.output(host) for host in minority))
    run.hosts.heal()
    run.wait_for_steps(1, 2, 3, 4, 5)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=2)

    run.assert_kept(end, ended=[1, 2, 3, 4, 5])
    run.assert_only_the_step_in_flight_was_redone(end)


def test_a_side_that_lost_waits_for_as_long_as_the_cut_lasts(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """Its nodes reach nobody but each other, and each looks for the hub at the other again and again, at night for a
    minute. Where one came to the other at a bad moment it was sent to itself, was refused there, and ended with 1."""
    run = host_run(5, nodes="1:5", steps=STEPS)
    run.join(1, 2, 3, 4, 5)
    before = run.wait_for_steps(1, 2, 3, 4, 5)
    run.hosts.partition([1, 2, 3], [4, 5])
    assert run.wait_for_steps(1, 2, 3) == before + 1
    run.wait_for("the others look for the hub", lambda _: all(LOOKS in run.output(host) for host in (4, 5)))
    looked = {host: run.output(host).count(NO_HUB) for host in (4, 5)}
    run.wait_for(
        "both look again and again",
        lambda _: all(run.output(host).count(NO_HUB) >= looked[host] + LOOKS_MORE for host in (4, 5)),
    )
    run.hosts.heal()
    run.wait_for_steps(1, 2, 3, 4, 5)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=2)

    run.assert_kept(end, ended=[1, 2, 3, 4, 5])
    run.assert_only_the_step_in_flight_was_redone(end)


def test_one_half_of_four_goes_on(host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]) -> None:
    """Whoever wins the claim in storage, which both reach; the other half says that others have it."""
    run = host_run(4, nodes="1:4", steps=STEPS)
    run.join(1, 2, 3, 4)
    before = run.wait_for_steps(1, 2, 3, 4)
    run.hosts.partition([1, 2], [3, 4])
    run.wait_for("one half goes on", lambda _: run.generation > before and run.hosts_in_view() in ([1, 2], [3, 4]))
    winners = run.hosts_in_view()
    run.wait_for_steps(*winners)
    losers = sorted({1, 2, 3, 4} - {*winners})
    run.wait_for("the others say why they wait", lambda _: all(GONE_ON in run.output(host) for host in losers))
    run.hosts.heal()
    run.wait_for_steps(1, 2, 3, 4)
    assert not any(GONE_ON in run.output(host) for host in winners), run.state()
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=2)

    run.assert_kept(end, ended=[1, 2, 3, 4])
    run.assert_only_the_step_in_flight_was_redone(end)

"""The host of the hub, and of torchrun's store, is as mortal as the rest: the others go on under another hub."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from elastic.drill.end import End
from elastic.drill.hosts.network import address, name
from elastic.drill.hosts.on_hosts import PORT
from elastic.launch.rendezvous.written_meeting import FOLDER
from tests.kit.host_runs import HostRun

pytestmark = pytest.mark.nightly(sample=1, of="the host of the hub")

STEPS = 240


def met_at(run: HostRun) -> int:
    """The host whose rendezvous store was written of at the run's URL."""
    (written,) = (run.url / FOLDER).iterdir()
    return next(host for host in (1, 2, 3) if address(host) == json.loads(written.read_text())["host"])


@pytest.mark.parametrize("how", ["crash", "lose_power", "cut"])
def test_the_hub_s_host_is_lost(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], how: str
) -> None:
    """In the same processes; and who joins afterwards finds the new hub."""
    run = host_run(4, nodes="1:4", steps=STEPS)
    run.join(1, 2, 3)
    before = run.wait_for_steps(1, 2, 3)
    survivors = run.workers_of(2, 3)
    getattr(run.hosts, how)(1)
    assert run.wait_for_steps(2, 3) == before + 1
    assert run.workers_of(2, 3) == survivors, run.state()
    run.join(4)
    run.wait_for_steps(2, 3, 4)
    if how == "cut":
        run.hosts.heal(1)
        run.wait_for_steps(1, 2, 3, 4)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=[1, 2, 3, 4] if how == "cut" else [2, 3, 4])
    run.assert_only_the_step_in_flight_was_redone(end)


def test_the_hub_s_host_is_told_to_stop(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """It hands over before it goes: nobody is lost, no step is done again, and who joins later finds the others."""
    run = host_run(4, nodes="1:4", steps=STEPS)
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    survivors = run.workers_of(2, 3)
    run.hosts.terminate(1)
    assert run.wait_for_end(1).status == 0
    run.wait_for_steps(2, 3)
    assert run.workers_of(2, 3) == survivors, run.state()
    run.join(4)
    run.wait_for_steps(2, 3, 4)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, 2, 3, 4])
    assert end.verdict.redone == 0


@pytest.mark.parametrize("by", ["the run's URL alone", "another host that is named"])
def test_who_comes_when_the_first_host_is_gone_finds_the_run(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], by: str
) -> None:
    """The host at which the first ones met was crashed, and with it the store of their rendezvous."""
    hosts = f"{name(1)}:{PORT},{name(2)}:{PORT}"
    run = host_run(4, nodes="1:4", steps=STEPS, endpoint=hosts)
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    run.hosts.crash(1)
    run.join(4, endpoint=str(run.url) if by == "the run's URL alone" else hosts)
    run.wait_for_steps(2, 3, 4)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=[2, 3, 4])
    run.assert_only_the_step_in_flight_was_redone(end)


def test_hosts_that_know_nothing_but_the_run_s_url(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """They meet at one that is written there, lose it, and are joined by another; are all lost at once; and two of them
    go on by the same command."""
    run = host_run(4, nodes="2:4", steps=STEPS, endpoint="")
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    run.hosts.crash(met_at(run))
    left = [host for host in (1, 2, 3) if run.hosts.running(host)]
    run.wait_for_steps(*left)
    run.join(4)
    run.wait_for_steps(*left, 4)
    run.hosts.crash(*left, 4)
    run.join(*left)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=4, launches=2)

    run.assert_kept(end, ended=left)


def test_a_machine_that_meets_nobody_does_not_evict_the_run_that_it_left(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """It comes back with another endpoint, hosts a store there, and finds that the agent in the run's claim, its own
    before, has ended. It had the next claim at once, and the run ended at its next save."""
    run = host_run(2, nodes="1:2", steps=STEPS)
    run.join(1, 2)
    run.wait_for_steps(1, 2)
    run.hosts.terminate(1)
    assert run.wait_for_end(1).status == 0
    run.wait_for_steps(2)
    run.join(1, endpoint=f"{name(1)}:{PORT + 1}")
    refused = run.wait_for_end(1)
    assert refused.status == 1, run.state()
    assert "belongs to a live job" in run.output(1), run.state()
    run.wait_for_steps(2)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=0)

    assert end.outcomes[2].status == 0, run.state()
    assert end.verdict.redone == 0


@pytest.mark.parametrize("how", ["crash", "terminate"])
def test_the_host_that_is_named_comes_back_by_the_same_command(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], how: str
) -> None:
    """It alone is named, as under torchrun, and its store is empty: the hub, which is another host's by then, says
    there where it is. (Two must meet, so it never goes on alone.)"""
    run = host_run(3, nodes="2:3", steps=STEPS, endpoint=f"{name(1)}:{PORT}")
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    getattr(run.hosts, how)(1)
    if how == "terminate":
        assert run.wait_for_end(1).status == 0
    run.wait_for_steps(2, 3)
    run.join(1)
    run.wait_for_steps(1, 2, 3)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=int(how == "crash"))

    run.assert_kept(end, ended=[1, 2, 3])


def test_hub_after_hub_is_lost(host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]) -> None:
    """Down to one of five, which goes on by a claim in storage; then others join it."""
    run = host_run(7, nodes="1:5", steps=STEPS)
    run.join(1, 2, 3, 4, 5)
    run.wait_for_steps(1, 2, 3, 4, 5)
    left = [1, 2, 3, 4, 5]
    survivor = run.workers_of(5)
    while len(left) > 1:
        run.hosts.crash(left.pop(0))
        run.wait_for_steps(*left)
        assert run.workers_of(5) == survivor, run.state()
    run.join(6, 7)
    run.wait_for_steps(5, 6, 7)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=4)

    run.assert_kept(end, ended=[5, 6, 7])
    assert end.verdict.redone <= 4


def test_every_host_was_replaced_once(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """None of the first view is left, and still one more joins. Each machine is started again by its autoscaler: on a
    new host, with the same command."""
    run = host_run(7, nodes="1:3", steps=STEPS)
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    here = [1, 2, 3]
    for new in (4, 5, 6):
        run.hosts.terminate(gone := here.pop(0))
        assert run.wait_for_end(gone).status == 0
        run.join(new)
        here.append(new)
        run.wait_for_steps(*here)
    run.hosts.crash(4)
    run.join(7)
    run.wait_for_steps(5, 6, 7)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=[1, 2, 3, 5, 6, 7])
    run.assert_only_the_step_in_flight_was_redone(end)

"""Live recovery, with real processes and real signals: survivors go on in the same processes, and no bit differs.

Each run is judged by what it did (drill/judge/invariants.py): every example once, survivors never restart, do only the
step in flight again, and take no state from storage while one of them holds it. Several faults share a run where they
do not mask each other: one without a step waits for a view after the last fault's, and for four workers in it. The runs
are told to go slowly while somebody is missing, so that a few hundred steps see a dozen recoveries.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import (
    OF_A_STEP,
    At,
    Fault,
    Kill,
    KillAgent,
    KillAll,
    KillTogether,
    Plan,
    Raise,
    Stop,
    Terminate,
)
from elastic.events.event import Event

pytestmark = pytest.mark.nightly(sample=1, of="losses in a live run")

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

STEPS = 240
SLOW: dict[str, Any] = {"unhurried": 4, "save_every": 40}


def complete(phase: str) -> At:
    """That moment, once all faults before it have happened and four workers are there."""
    return At(None, phase, world_size=4)


def live(elastic_cluster: MakeCluster, faults: Sequence[Fault], *, steps: int = STEPS, **options: Any) -> Cluster:
    return elastic_cluster(workers=4, launcher="elastic", steps=steps, seed=7, plan=Plan(tuple(faults)), **options)


def judged(run: Cluster, reference: Sequence[Event] | str | None, *, within_s: float = 120) -> End:
    """The end of a run that recovered from all that its plan had."""
    end = run.finish(within_s=within_s, reference=reference)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    return end


def test_a_worker_is_killed_at_every_moment_of_a_step(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """Before, inside and after the exchange and the update, ranks in turn, so the coordinator, too."""
    faults = [Kill(at % 4, complete(phase)) for at, phase in enumerate(OF_A_STEP)]
    run = live(elastic_cluster, [*faults, Kill(0, complete("save")), Kill(0, complete("saved"))], **SLOW)
    end = judged(run, elastic_undisturbed(steps=STEPS, seed=7).events)

    # Of each fault the step in flight; and the next one, where the one that was killed had begun it before the others.
    assert end.steps_redone <= 2 * (len(faults) + 2)
    assert sum(event["event"] == "claimed" for event in end.events) == 1


def test_workers_are_killed_while_others_recover(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """A second and a third loss in the forming of the view, and in what follows it, is only one more generation."""
    faults: list[Fault] = []
    for phase in ("form", "formed", "transfer"):
        # In the first step others may still begin: they would be newcomers, and no view of three be formed.
        faults += [Kill(3, complete("forward") if faults else At(2, "forward"))]
        faults += [Kill(1, At(None, phase, world_size=3)), Kill(0, At(None, phase, world_size=2))]
    for phase in ("form", "formed", "transfer", "in_transfer"):  # now with a replacement that needs the state
        for worker in (0, 3):
            faults += [Kill(2, complete("forward")), Kill(worker, complete(phase))]
    judged(live(elastic_cluster, faults, steps=360, **SLOW), elastic_undisturbed(steps=360, seed=7).events)


def test_several_are_killed_at_once(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """Two, with the coordinator among them, and in the end all four: the agent starts others, which go on from the
    newest save."""
    faults = [
        KillTogether((1, 2), complete("backward")),
        KillTogether((3, 0), complete("in_exchange")),
        KillTogether((2, 0, 1), complete("in_update")),
        KillTogether((0, 1, 2, 3), complete("forward")),
    ]
    end = judged(live(elastic_cluster, faults, **SLOW), elastic_undisturbed(steps=STEPS, seed=7).events)

    assert sum(event["event"] == "claimed" for event in end.events) == 2


def test_everything_is_killed_and_goes_on_at_another_size(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    run = live(elastic_cluster, [Kill(2, At(4, "forward")), KillAll(At(20, "in_update", worker=1))], steps=40)
    cut = run.finish(within_s=240)
    assert (cut.exit_code, cut.left_behind) == (-signal.SIGKILL, ())

    judged(run.start(workers=2), elastic_undisturbed(steps=40, seed=7).events)


def test_a_stopped_worker_is_replaced(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """It resets no connection, and those who wait for it are not taken for stuck themselves."""
    faults: list[Fault] = [
        Stop(1, complete("forward")),
        Stop(0, complete("in_exchange")),
        Stop(2, complete("in_update")),
    ]
    faults += [Stop(0, complete("save"))]
    run = live(elastic_cluster, faults, restarts=9, **SLOW)
    end = judged(run, elastic_undisturbed(steps=STEPS, seed=7).events)

    assert end.steps_redone <= 2 * len(faults)
    assert end.output.count("its process is stopped; it is killed") == len(faults)


def test_a_worker_that_is_told_to_leave_costs_nobody_a_step(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    run = live(elastic_cluster, [Terminate(2, At(8, "in_backward")), Terminate(0, At(20, "exchange"))], steps=40)
    end = judged(run, elastic_undisturbed(steps=40, seed=7).events)

    assert (end.world_sizes, end.steps_redone) == ([4, 3, 2], 0)


def test_one_that_is_killed_as_it_leaves_costs_the_others_one_view(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """All knew that it would leave: the view without it, which its loss has brought, has nobody else to let go."""
    run = live(elastic_cluster, [Terminate(2, At(8, "in_backward")), Kill(2, At(8, "applied"))], steps=40)
    end = judged(run, elastic_undisturbed(steps=40, seed=7).events)

    without = [event for event in end.events if event["event"] == "view_formed" and event["world_size"] == 3]
    assert len({event["generation"] for event in without}) == 1, end.output
    assert end.steps_redone <= 1  # its end may tear the last bytes of the exchange from one who still reads them


def test_all_are_told_to_leave_and_nothing_is_lost(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    run = live(elastic_cluster, [], length=96)
    run.wait_for(lambda event: event["event"] == "step_applied" and event["step"] >= 5, within_s=240)
    run.send(signal.SIGTERM)
    left = run.finish(within_s=240)
    assert (left.exit_code, left.left_behind) == (0, ()), left.output
    assert count_of(left, "left") == 4

    end = judged(run.start(), elastic_undisturbed(steps=STEPS, seed=7, length=96).events)
    assert end.steps_redone == 0


def test_an_exception_in_the_script_costs_its_worker_only(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """In the body of the loop, inside the optimizer (a torn state is never given), and where data are read."""
    faults = [Raise(1, complete("forward")), Raise(0, complete("in_update")), Raise(0, complete("data"))]
    faults += [Raise(3, complete("in_backward")), Raise(2, complete("applied"))]
    end = judged(live(elastic_cluster, faults, **SLOW), elastic_undisturbed(steps=STEPS, seed=7).events)

    for fault in faults:
        assert end.output.count(f"OnPurpose: {fault}") == 1, end.output


def test_the_same_exception_twice_at_one_step_ends_the_run(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """Shown once, with the step and the log; a survivor saves the state before that step, and nothing else is lost."""
    fault = Raise(1, At(12, "forward"))
    run = live(elastic_cluster, [fault, fault], steps=30, options=["--redirects=3"])
    end = run.finish(within_s=240)
    assert (end.exit_code, end.left_behind, end.not_reached) == (1, (), ())
    assert end.output.count("Traceback") == 1, end.output
    assert "same failure twice at step 12" in end.output
    assert "stderr.log" in end.output
    assert [event["step"] for event in end.events if event["event"] == "saved"][-1] == 12

    end = judged(run.start(), elastic_undisturbed(steps=30, seed=7).events)
    assert end.steps_redone <= 2


def test_workers_with_loader_processes_are_lost(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """Loader processes of the dead neither outlive nor delay anything."""
    faults: list[Fault] = [Kill(2, complete("forward")), Kill(0, complete("data")), Kill(1, complete("in_exchange"))]
    faults += [Stop(3, complete("backward"))]
    run = live(elastic_cluster, faults, num_workers=2, **SLOW)
    judged(run, elastic_undisturbed(steps=STEPS, seed=7).events)


def test_in_fast_mode_every_example_is_still_applied_once(elastic_cluster: MakeCluster) -> None:
    faults = [Kill(2, complete("forward")), Kill(0, complete("in_update")), Kill(1, complete("in_exchange"))]
    judged(live(elastic_cluster, faults, mode="fast", **SLOW), None)


@pytest.mark.parametrize("worker", [0, 2])
def test_a_worker_is_lost_where_the_run_ends(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, worker: int
) -> None:
    """In an evaluation between steps; before the last save is awaited; in an evaluation when no view comes any more."""
    faults = [Kill(worker, complete("evaluate")), Kill(worker, At(199, "finish")), Kill(worker, At(199, "evaluate"))]
    run = live(elastic_cluster, faults, steps=200, evaluate_every=16, **SLOW)
    judged(run, elastic_undisturbed(steps=200, seed=7, evaluate_every=16).events)


def test_a_killed_agent_leaves_nothing_behind(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """Its workers see its death, save what they may and go; the same command goes on."""
    run = live(elastic_cluster, [KillAgent(2, At(12, "forward"))], steps=60)
    killed = run.finish(within_s=240)
    assert (killed.exit_code, killed.left_behind) == (-signal.SIGKILL, ())
    told = {event["event"] for event in killed.events}
    assert ("agent_lost" in told, told & {"notice", "ended"}) == (True, set()), "nobody told them to leave"

    judged(run.start(), elastic_undisturbed(steps=60, seed=7).events)


def test_a_worker_that_is_stopped_as_its_agent_is_killed_is_not_left_behind(elastic_cluster: MakeCluster) -> None:
    """It heard nothing of that for as long as nobody woke it."""
    faults = Stop(1, At(12, "forward")), KillAgent(2, At(12, "backward"))
    killed = live(elastic_cluster, faults, steps=60).finish(within_s=240)
    assert (killed.exit_code, killed.left_behind, killed.not_reached) == (-signal.SIGKILL, (), ())


def test_all_are_told_to_leave_below_the_minimum_and_nothing_is_lost(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """The node of the coordinator is gone, and with it who saves; those who are left wait for another node in vain."""
    faults: list[Fault] = [
        KillTogether((0, 1), complete("forward")),
        KillAgent(0, At(120, "forward", world_size=4, later=True)),  # the newcomers have long received the state
    ]  # the hub is in the other
    run = live(elastic_cluster, faults, steps=160, nodes=2, unhurried=4, save_every=1000)
    run.wait_for(lambda _: "at least 2 nodes are here" in run.output(), within_s=240)
    run.send(signal.SIGTERM)
    left = run.finish(within_s=240)
    assert (left.left_behind, left.not_reached) == ((), ()), left.output
    survivors = {event["worker"] for event in left.events if event["event"] == "left"}  # the dead may be a step ahead
    applied = max(e["step"] for e in left.events if e["event"] == "step_applied" and e["worker"] in survivors)
    assert [event["step"] for event in left.events if event["event"] == "saved"][-1] == applied + 1, left.output

    judged(run.start(), elastic_undisturbed(steps=160, seed=7).events)


def count_of(end: End, kind: str) -> int:
    return sum(event["event"] == kind for event in end.events)

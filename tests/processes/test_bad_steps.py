"""Bad steps are passed over alike on every worker, whatever happens to the workers meanwhile: equal bits.

The script's steps 2 and 14 read an example that is no number. Regular saves come after every fourth step, so that
skipping passes over two steps, and going back over six.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan, Terminate

pytestmark = pytest.mark.nightly(sample=2, of="bad steps")

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "poisoned.py"
STEPS = 24
BAD = {"script": PROGRAM, "steps": STEPS, "nan": 70}
PASSED = {"skip": (2, 14), "rollback": (0, 1, 2, 12, 13, 14)}


def digests(end: End) -> set[str]:
    """Of what the workers held at the end."""
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    return set(re.findall(r"took part: ([0-9a-f]{64}) with", end.output))


@pytest.fixture
def alone(elastic_undisturbed: Undisturbed) -> Callable[..., End]:
    def run(**options: Any) -> End:
        return elastic_undisturbed(**BAD, **options)

    return run


@pytest.mark.parametrize("plain", [0, 1])
@pytest.mark.parametrize("on_bad", ["skip", "rollback"])
def test_workers_killed_while_others_pass_a_step_over_leave_no_trace(
    elastic_cluster: MakeCluster, alone: Callable[..., End], on_bad: str, plain: int
) -> None:
    """The coordinator before its regular save is copied, and another one in the middle of passing over."""
    options = {"on_bad": on_bad, "plain": plain}
    reference = alone(**options)
    faults = (Kill(0, At(11, "save")), Kill(1, At(14, "update")))
    run = elastic_cluster(**BAD, **options, workers=3, launcher="elastic", plan=Plan(faults), unhurried=3)
    end = run.finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert digests(end) == digests(reference)
    assert end.verdict.passed_over == PASSED[on_bad]
    assert end.verdict.examples_applied.total() == 24 * (STEPS - len(PASSED[on_bad]))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_lost_while_a_save_is_read_to_go_back_to_costs_the_step_in_hand(
    elastic_cluster: MakeCluster, alone: Callable[..., End], rank: int
) -> None:
    """It comes round again, is bad again, and goes back from there."""
    reference = alone(on_bad="rollback")
    run = elastic_cluster(**BAD, on_bad="rollback", workers=3, launcher="elastic", lose=rank)
    end = run.finish(within_s=240)

    assert digests(end) == digests(reference)
    assert end.verdict.world_sizes[:2] == (3, 2), end.output
    assert end.verdict.passed_over == PASSED["rollback"]


@pytest.mark.parametrize("launcher", ["elastic", "torchrun"])
@pytest.mark.parametrize("on_bad", ["skip", "rollback"])
def test_a_resume_at_another_size_passes_over_the_same(
    elastic_cluster: MakeCluster, alone: Callable[..., End], on_bad: str, launcher: str, tmp_path: Path
) -> None:
    """From a save before the bad step, which it comes to again; and from one of workers that left behind it."""
    reference = alone(on_bad=on_bad)
    options: dict[str, Any] = {**BAD, "on_bad": on_bad, "url": tmp_path / "run", "launcher": launcher}
    for workers, fault in ((3, KillAll(At(15, "forward"))), (1, Terminate(0, At(17, "forward")))):
        elastic_cluster(workers=workers, plan=Plan((fault,)), **options).finish(within_s=240)
    end = elastic_cluster(workers=2, **options).finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert digests(end) == digests(reference)
    assert end.verdict.passed_over == PASSED[on_bad]


@pytest.mark.parametrize("options", [{"scaled": 1}, {"scaled": 1, "plain": 1}, {"huge": 250, "spike": 10}, {}])
def test_what_is_bad_is_so_at_every_world_size(
    elastic_cluster: MakeCluster, alone: Callable[..., End], options: dict[str, Any]
) -> None:
    """With a scaler that skips its own first steps by itself, and for spikes, which each worker judges alone."""
    reference = alone(**options)
    end = elastic_cluster(**BAD, **options, workers=3, launcher="elastic").finish(
        within_s=240, reference=reference.events
    )

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert digests(end) == digests(reference)
    assert end.verdict.passed_over[0] == 2


@pytest.mark.parametrize("plain", [0, 1])
def test_in_fast_mode_all_workers_decide_alike(elastic_cluster: MakeCluster, plain: int) -> None:
    """Its sums are plain all-reduces: the same bits on all ranks, as every step's announcement checks."""
    options = {"mode": "fast", "plain": plain, "on_bad": "rollback", "huge": 250, "spike": 10}
    end = elastic_cluster(**BAD, **options, workers=3, launcher="elastic").finish(within_s=240)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert len(digests(end)) == 1
    assert set(PASSED["rollback"]) <= set(end.verdict.passed_over)


def test_a_run_that_stops_at_a_bad_step_is_not_started_again_and_again(elastic_cluster: MakeCluster) -> None:
    """The step would be bad again: `elastic run` ends, with the sentence, and nothing of the step is saved."""
    end = elastic_cluster(**BAD, on_bad="stop", workers=2, launcher="elastic").finish(within_s=240)

    assert end.exit_code != 0
    assert "step 2 is bad: the loss is nan" in end.output
    assert "a step is bad, and would be again" in end.output
    assert {event["worker"] for event in end.events if event["event"] == "run_started"} == {
        worker for event in end.events if event["event"] == "view_formed" for worker in event["workers"][:2]
    }
    assert max(event["step"] for event in end.events if event["event"] == "saved") == 0

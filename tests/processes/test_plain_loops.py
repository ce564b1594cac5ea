"""A loop over run.batches(), whose body knows nothing of shares: the same bits whatever happens to its workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Fault, Kill, KillAll, Plan, Raise, Stop, Terminate

pytestmark = pytest.mark.nightly(sample=3, of="plain loops")

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "plain.py"
STEPS = 60
SLOW: dict[str, Any] = {"steps": STEPS, "unhurried": 3, "short": 21}


def complete(phase: str) -> At:
    """That moment, once all faults before it have happened and three workers are there."""
    return At(None, phase, world_size=3)


def digests(end: End) -> list[str]:
    """Of what the workers held at the end: weights, their average, optimizer, schedule, and what the loop counted."""
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    return re.findall(r"took part: ([0-9a-f]{64}) with", end.output)


@pytest.fixture
def alone(elastic_undisturbed: Undisturbed) -> Callable[..., tuple[str, End]]:
    def run(**options: Any) -> tuple[str, End]:
        end = elastic_undisturbed(script=PROGRAM, **options)
        (digest,) = digests(end)
        return digest, end

    return run


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_the_world_size_changes_no_bit(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]], workers: int, micro: int | None
) -> None:
    """The last batch of an epoch is one share, so all workers but one have none, and a body all the same."""
    options = {"steps": 24, "short": 21}
    if micro:
        options = {"steps": 24, "batch_size": 48, "short": 42, "micro_batch_size": micro}
    digest, reference = alone(**options)
    run = elastic_cluster(script=PROGRAM, workers=workers, launcher="elastic", **options)
    end = run.finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, end.verdict
    assert digests(end) == [digest] * workers
    counts = re.findall(r"foreseen: (\d+), passed: (\d+)", end.output)
    assert len(counts) == 3 * workers
    assert all(foreseen == passed for foreseen, passed in counts)


@pytest.mark.nightly(sample=2, of="losses in a plain loop")
@pytest.mark.parametrize("phases", [("forward", "in_backward", "in_exchange"), ("in_update", "applied", "data")])
def test_lost_workers_leave_no_trace(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]], phases: Sequence[str]
) -> None:
    digest, reference = alone(steps=STEPS, short=21)
    faults: list[Fault] = [Kill(rank, complete(phase)) for rank, phase in zip((2, 0, 1), phases, strict=True)]
    run = elastic_cluster(script=PROGRAM, workers=3, launcher="elastic", plan=Plan(tuple(faults)), **SLOW)
    end = run.finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert set(digests(end)) == {digest}


@pytest.mark.nightly(sample=2, of="losses in a plain loop")
def test_exceptions_notices_and_hangs_leave_no_trace(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]]
) -> None:
    """Raised inside the loop's own optimizer.step() and in its body; a worker that is told to go; one that hangs."""
    digest, reference = alone(steps=STEPS, short=21)
    faults: list[Fault] = [Raise(1, complete("in_update")), Raise(0, complete("in_backward"))]
    faults += [Stop(1, complete("backward")), Terminate(2, complete("forward"))]
    run = elastic_cluster(script=PROGRAM, workers=3, launcher="elastic", plan=Plan(tuple(faults)), **SLOW)
    end = run.finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert set(digests(end)) == {digest}


@pytest.mark.parametrize("where", ["body", "apply"])
def test_workers_that_are_lost_in_an_evaluation_of_each_step_leave_no_trace(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]], where: str
) -> None:
    """In the midst of an update, too, where no view could follow: those who are left complete it, each by itself."""
    digest, reference = alone(steps=STEPS, short=21, evaluate=where)
    faults: list[Fault] = [Kill(rank, complete("evaluate")) for rank in (1, 0, 2)]
    run = elastic_cluster(
        script=PROGRAM, workers=3, launcher="elastic", plan=Plan(tuple(faults)), evaluate=where, **SLOW
    )
    end = run.finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert set(digests(end)) == {digest}


def test_a_scaler_skips_on_inf_on_all_workers_alike(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]]
) -> None:
    """The first steps overflow, and are skipped, until the scale has fallen."""
    digest, reference = alone(steps=24, scale=127)
    run = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", steps=24, scale=127)
    end = run.finish(within_s=240, reference=reference.events)

    scales = re.findall(r"^scale (.*)$", reference.output + end.output, re.M)
    assert len(scales) == 3
    assert {float(scale) < 2.0**127 for scale in scales} == {True}
    assert digests(end) == [digest] * 2


def test_several_optimizers_step_in_one_body(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]]
) -> None:
    """Under `elastic run` the first step of any of them ended in a KeyError."""
    digest, _ = alone(steps=24, two=1)
    end = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", steps=24, two=1, lose=5).finish(within_s=240)

    assert digests(end) == [digest] * 2


def test_a_metric_counts_whole_batches_where_a_step_is_taken_over(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]]
) -> None:
    """By itself it would count a worker's shares, and those of the step that was taken over twice, or not at all."""
    digest, _ = alone(steps=24, metric=1)
    end = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", steps=24, metric=1, lose=5).finish(
        within_s=240
    )

    assert digests(end) == [digest] * 2


def test_a_drill_finds_a_body_that_depends_on_how_many_there_were(elastic_cluster: MakeCluster) -> None:
    """At one worker, too, and without a fault."""
    end = elastic_cluster(script=PROGRAM, workers=1, launcher="elastic", steps=4, weigh=1).finish(within_s=240)
    assert end.exit_code != 0
    assert " of step 0 was passed twice, by this worker, and gave other gradients the second time" in end.output
    assert "of the script's variables it changed bodies" in end.output


@pytest.mark.nightly(sample=2, of="losses in a plain loop")
@pytest.mark.parametrize("lose", [5, 7])
def test_a_step_that_is_taken_over_is_counted_once(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]], lose: int
) -> None:
    """One worker's loop goes on inside `backward` with the state of who has stepped, and runs its own code once: in the
    middle of an epoch, and at the end of one."""
    digest, _ = alone(steps=24)
    end = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", steps=24, lose=lose).finish(within_s=240)

    assert digests(end) == [digest] * 2


@pytest.mark.nightly(sample=2, of="losses in a plain loop")
@pytest.mark.parametrize("launcher", ["elastic", "torchrun"])
def test_after_the_loss_of_all_another_number_of_workers_goes_on(
    elastic_cluster: MakeCluster, alone: Callable[..., tuple[str, End]], launcher: str, tmp_path: Path
) -> None:
    """In the middle of an epoch, which the loop then finishes."""
    digest, reference = alone(steps=24, short=21)
    options: dict[str, Any] = {"steps": 24, "short": 21, "url": tmp_path / "run", "script": PROGRAM}
    all_lost = Plan((KillAll(At(11, "forward")),))
    run = elastic_cluster(workers=3, launcher=launcher, plan=all_lost, **options)
    run.finish(within_s=240)

    end = elastic_cluster(workers=2, launcher=launcher, **options).finish(within_s=240, reference=reference.events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert set(digests(end)) == {digest}


@pytest.mark.nightly(sample=2, of="losses in a plain loop")
def test_in_fast_mode_every_example_is_applied_once(elastic_cluster: MakeCluster) -> None:
    """With loader processes."""
    faults: list[Fault] = [Kill(2, complete("forward")), Kill(0, complete("in_update"))]
    plan = Plan(tuple(faults))
    run = elastic_cluster(script=PROGRAM, workers=3, launcher="elastic", plan=plan, mode="fast", num_workers=1, **SLOW)
    end = run.finish(within_s=240)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert len(set(digests(end))) == 1

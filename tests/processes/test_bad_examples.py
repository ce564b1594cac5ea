"""Examples that raise are left out alike, whoever reads them: at every world size, after losses, and in a resume."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan, Raise
from tests.kit.loading import Asked, forget_earlier_children, loader, read_all, request

pytestmark = pytest.mark.nightly(sample=2, of="examples that raise")

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "spotty.py"


def ends(end: End) -> set[str]:
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    return set(re.findall(r"took part: ([0-9a-f]{64} counted \d+)", end.output))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_leaves_out_what_raises_and_says_so(num_workers: int) -> None:
    """Loader processes included; the others of the request are one batch, and an empty one is none."""
    forget_earlier_children()

    def torn(index: int) -> int:
        if index % 2:
            raise ValueError(f"record {index} is torn")
        return index

    with loader(Asked(torn), num_workers=num_workers, on_bad_example="skip") as made:
        made.open([request(4, 3, 2, 5, epoch=1), request(7, 9), request(8)])
        first, second, third = read_all(made)

    assert first.batch.tolist() == first.indices.tolist() == [4, 2]
    assert [(one.at, one.epoch, one.index) for one in first.left_out] == [(1, 1, 3), (3, 1, 5)]
    assert first.left_out[0].error == "ValueError: record 3 is torn"
    assert (second.batch, len(second.indices), len(second.left_out)) == (None, 0, 2)
    assert (third.batch.tolist(), third.left_out) == ([8], ())


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (2, {"loop": "batches"}),
        (3, {"loop": "batches", "num_workers": 2}),
        (5, {"loop": "batches"}),
        (3, {"loop": "steps"}),
        (5, {"loop": "steps", "num_workers": 1}),
    ],
)
def test_the_world_size_changes_no_bit(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, workers: int, options: dict[str, Any]
) -> None:
    alone = elastic_undisturbed(script=PROGRAM, steps=24, loop=options["loop"])
    run = elastic_cluster(script=PROGRAM, steps=24, workers=workers, launcher="elastic", **options)
    end = run.finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert ends(end) == ends(alone) != set()
    assert len([event for event in end.events if event["event"] == "example_left_out"]) > 50


@pytest.mark.parametrize("loop", ["steps", "batches"])
def test_workers_that_are_lost_leave_the_bits_alone(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, loop: str
) -> None:
    """In the very steps that lose a share, too: whoever reads it next leaves it out as well."""
    options: dict[str, Any] = {"script": PROGRAM, "steps": 60, "loop": loop}
    alone = elastic_undisturbed(**options)
    lost = (
        Kill(0, At(3, "in_backward")),
        Raise(0, At(5, "forward", later=True)),
        Kill(2, At(None, "in_exchange", world_size=3)),
        Kill(1, At(None, "in_update", world_size=3)),
    )
    end = elastic_cluster(workers=3, launcher="elastic", plan=Plan(lost), unhurried=3, **options).finish(
        within_s=240, reference=alone.events
    )

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert ends(end) == ends(alone), end.output


@pytest.mark.parametrize("loop", ["steps", "batches"])
def test_a_step_that_is_taken_over_or_goes_on_from_storage_counts_the_same(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, loop: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"script": PROGRAM, "steps": 24, "loop": loop}
    alone = elastic_undisturbed(**options)
    taken = elastic_cluster(workers=2, launcher="elastic", lose=5, **options).finish(within_s=240)
    assert ends(taken) == ends(alone)

    options["url"] = tmp_path / "run"
    elastic_cluster(workers=3, launcher="elastic", plan=Plan((KillAll(At(5, "forward")),)), **options).finish(
        within_s=240
    )
    end = elastic_cluster(workers=2, launcher="elastic", **options).finish(within_s=240, reference=alone.events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert ends(end) == ends(alone), end.output


@pytest.mark.parametrize("loop", ["steps", "batches"])
def test_an_example_that_raises_on_one_worker_only_is_left_out_by_all(elastic_cluster: MakeCluster, loop: str) -> None:
    """Its share is read by one worker, whose word counts for all; when that one is lost, the step decides anew."""
    lost = Plan((Kill(1, At(4, "in_exchange")), Kill(0, At(None, "in_update", world_size=3))))
    run = elastic_cluster(
        script=PROGRAM, steps=60, workers=3, launcher="elastic", loop=loop, flaky=True, plan=lost, unhurried=3
    )
    end = run.finish(within_s=240)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert len(ends(end)) == 1, end.output
    assert any("did not come" in event["error"] for event in end.events if event["event"] == "example_left_out")


def test_in_fast_mode_they_are_left_out_too(elastic_cluster: MakeCluster) -> None:
    run = elastic_cluster(script=PROGRAM, steps=24, workers=2, launcher="elastic", mode="fast")
    end = run.finish(within_s=240)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert len(ends(end)) == 1

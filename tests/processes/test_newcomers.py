"""Most of the state goes to a newcomer while the others compute their next step, and no fault of that shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Fault, Kill, Plan

MakeCluster = Callable[..., Cluster]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "newcomers.py"


def ends(elastic_cluster: MakeCluster, **options: Any) -> tuple[End, set[str], int]:
    """The end, the digests of those who came to it, and how many steps they had no share of."""
    end = elastic_cluster(script=PROGRAM, **options).finish(within_s=240)
    assert end.exit_code == 0, end.output
    assert (end.not_reached, end.left_behind) == ((), ()), end.output
    found = re.findall(r"took part: ([0-9a-f]{64}) idle (\d+)", end.output)
    return end, {digest for digest, _ in found}, sum(int(idle) for _, idle in found)


@pytest.fixture
def alone(elastic_cluster: MakeCluster) -> set[str]:
    _, digests, idle = ends(elastic_cluster)
    assert len(digests) == 1
    assert idle == 0
    return digests


LATER: dict[str, list[Fault]] = {
    "nothing": [],
    "a donor computes": [Kill(0, At(None, "forward", world_size=3))],
    "a donor gives": [Kill(1, At(None, "in_transfer", world_size=3))],
    "the newcomer receives": [Kill(2, At(None, "in_transfer", world_size=3))],
    "the newcomer is in its first exchange": [Kill(2, At(None, "in_exchange", world_size=3))],
}


@pytest.mark.nightly(sample=1, of="what happens to newcomers")
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_a_newcomer_ends_with_the_bits_of_the_others_whoever_is_lost_meanwhile(
    elastic_cluster: MakeCluster, alone: set[str], later: list[Fault]
) -> None:
    plan = Plan((Kill(1, At(5, "forward")), *later))
    end, digests, idle = ends(elastic_cluster, workers=3, launcher="elastic", plan=plan)
    assert digests == alone
    if not later:
        assert idle == 1, end.output  # the newcomer's first step, and no other
        assert end.steps_redone == 1


@pytest.mark.nightly(sample=1, of="what scripts do to their weights")
@pytest.mark.parametrize("writes", ["before", "after"])
def test_a_script_that_writes_to_its_weights_between_two_steps_gives_them_whole(
    elastic_cluster: MakeCluster, writes: str
) -> None:
    """What a newcomer received while they were written to is of no use to it: it gets them all at once, later."""
    options = {"writes": writes}
    _, expected, _ = ends(elastic_cluster, **options)
    plan = Plan((Kill(1, At(5, "forward")), Kill(0, At(None, "applied", world_size=3))))
    end, digests, idle = ends(elastic_cluster, workers=3, launcher="elastic", plan=plan, **options)
    assert digests == expected
    assert idle <= 2, end.output
    if writes == "after":
        assert idle == 0, end.output

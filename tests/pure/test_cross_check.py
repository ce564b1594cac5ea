"""Which shares are passed by two workers, and how often; what is compared of them."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from elastic.loop.cross_check import Budget, CrossCheck

BLOCKS = [range(3), range(3, 6), range(6, 8)]


def planned(rank: int, **given: Any) -> CrossCheck:
    asked: dict[str, Any] = {"each": 1, "idle": (), "streams": False}
    return CrossCheck.planned(BLOCKS, rank, **(asked | given))


@pytest.mark.parametrize("idle", [(), (1,), (0, 2)])
@pytest.mark.parametrize("each", [1, 2, 8])
def test_each_share_that_is_passed_is_one_other_rank_s_own(each: int, idle: tuple[int, ...]) -> None:
    plans = [planned(rank, each=each, idle=idle) for rank in range(len(BLOCKS))]
    passed = sorted(share for plan in plans for share in plan.passes)
    assert passed == sorted(share for plan in plans for share in plan.own)
    assert not any(plans[rank].takes_place for rank in idle)
    if len(idle) < 2:
        assert all(plan.own.isdisjoint(plan.passes) for plan in plans)


@pytest.mark.parametrize(("joined", "passed"), [((2,), {2: 5}), ((0,), {0: 7}), ((0, 1), {0: 7, 1: 7})])
def test_who_joins_passes_a_share_of_one_that_was_there(joined: tuple[int, ...], passed: dict[int, int]) -> None:
    plans = [planned(rank, each=0, joined=joined) for rank in range(len(BLOCKS))]
    assert {rank: plan.passes for rank, plan in enumerate(plans) if plan.passes} == {
        rank: (share,) for rank, share in passed.items()
    }
    assert {share for plan in plans for share in plan.own} == {*passed.values()}
    assert not any(plan.takes_place for plan in plans)  # of what is saved next, others are to be checked, too


def test_where_all_have_just_joined_nobody_passes_anything() -> None:
    """Those who had given them the state are lost."""
    plans = [planned(rank, each=0, joined=(0, 1, 2)) for rank in range(len(BLOCKS))]
    assert [(plan.passes, [*plan.own]) for plan in plans] == [((), [])] * 3


def test_of_streams_each_passes_a_copy_of_its_own() -> None:
    assert [(plan.passes, [*plan.own], plan.copied) for plan in (planned(rank, streams=True) for rank in range(3))] == [
        ((), [0], 0),
        ((), [3], 3),
        ((), [6], 6),
    ]


def test_what_nobody_has_passed_is_not_compared() -> None:
    """A batch of which there is no copy, or that loader processes alone can read."""
    check = planned(0, streams=True)
    take = check.takes(0, torch.ones(2))
    assert take is not None
    take(0, torch.ones(3))
    own, passed = check.digests()
    assert (own != 0, passed) == (True, 0)
    check.compare([own, 5], [passed, 5], cast(Any, None), [], step=1)  # asks no rank for more

    void = planned(1)
    void.begins(2, torch.ones(2), void.theirs)
    void.gives_up()
    assert void.digests() == (0, 0)


def test_checks_are_free_at_first_and_then_a_small_part_of_all_shares() -> None:
    for cost in (1, 9):
        budget = Budget(24, cost=cost)
        asked = [step for step in range(20_000) if budget.asks(step, world_size=4)]
        assert asked[:3] == [0, 1, 2]
        assert 0.004 < (len(asked) - 3) * 4 * cost / (20_000 * 24) < 0.006

"""Views and failures: every promise of membership/rules/next_view.py and endings.repeated, for every small case."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.errors import CollectiveMismatch, Evicted, SavesFailed
from elastic.membership.rules.endings import Failure, repeated
from elastic.membership.rules.next_view import BOUNDARY, Candidate, next_view

STEP = "in the exchange of step 3"


def candidates(nodes: str, *, at: str | None, prefix: str, shares: int = 8) -> list[Candidate]:
    return [Candidate(worker=f"{prefix}{i}", node=node, shares=shares, at=at) for i, node in enumerate(nodes)]


CASES = [
    (candidates("".join(old), at=at, prefix="old", shares=shares), candidates("".join(new), at=None, prefix="new"))
    for olds in range(4)
    for news in range(4)
    for old in product("ab", repeat=olds)
    for new in product("abc", repeat=news)
    for at in (BOUNDARY, STEP)
    for shares in ((3, 4, 8) if olds else (8,))
]


def test_workers_of_one_node_stand_together() -> None:
    for survivors, newcomers in CASES:
        nodes = [node for node, _ in groupby(candidate.node for candidate in next_view(survivors, newcomers))]
        assert len(nodes) == len(set(nodes))


def test_all_survivors_go_on_and_the_first_of_them_is_rank_0() -> None:
    for survivors, newcomers in CASES:
        view = next_view(survivors, newcomers)
        assert view[: min(1, len(survivors))] == survivors[:1]
        assert [one for one in view if one in survivors] == sorted(
            survivors, key=lambda one: [other.node for other in survivors].index(one.node)
        )


def test_newcomers_join_in_their_order_while_there_is_room() -> None:
    for survivors, newcomers in CASES:
        view = next_view(survivors, newcomers)
        joined = {one.worker for one in view} - {one.worker for one in survivors}
        stand_at_boundary = all(survivor.at == BOUNDARY for survivor in survivors)
        room = (survivors or newcomers)[0].shares - len(survivors) if survivors or newcomers else 0
        assert joined == {one.worker for one in newcomers[: max(0, room)] if stand_at_boundary}
        assert len(view) == len(survivors) + len(joined)


def test_one_survivor_inside_a_step_keeps_all_newcomers_out() -> None:
    survivors = [*candidates("aa", at=BOUNDARY, prefix="old"), *candidates("a", at=STEP, prefix="late")]
    assert next_view(survivors, candidates("a", at=None, prefix="new")) == survivors


def test_a_newcomer_that_counts_fewer_shares_puts_nobody_out() -> None:
    survivors = candidates("aaa", at=BOUNDARY, prefix="old")
    newcomer = candidates("b", at=None, prefix="new", shares=1)
    assert next_view(survivors, newcomer)[:3] == survivors


def members_of(nodes: str, size: int, *, at: str | None, prefix: str, shares: int = 8) -> list[Candidate]:
    """A replica for each of these nodes, in the slots from 0 on."""
    slots = Counter[str]()
    found = []
    for node in nodes:
        for local_rank in range(slots[node], slots[node] + size):
            name = f"{prefix}{node}{local_rank}"
            found.append(Candidate(worker=name, node=node, shares=shares, at=at, local_rank=local_rank))
        slots[node] += size
    return found


@given(
    size=st.integers(1, 4),
    old=st.text("ab", max_size=4),
    new=st.text("abc", max_size=4),
    at=st.sampled_from([BOUNDARY, STEP]),
    shares=st.integers(1, 8),
    lost=st.sets(st.integers(0, 31)),
    data=st.data(),
)
def test_replicas_are_in_a_view_whole_or_not_at_all_and_stand_together(
    size: int, old: str, new: str, at: str, shares: int, lost: set[int], data: st.DataObject
) -> None:
    """A replica that lacks a member waits for it in its next forward pass, for good."""
    everyone = members_of(old, size, at=at, prefix="old", shares=max(shares, len(old)))
    coming = members_of(new, size, at=None, prefix="new", shares=shares)
    here = [one for number, one in enumerate(everyone) if number not in lost]
    newcomers = data.draw(st.permutations([one for number, one in enumerate(coming) if number not in lost]))

    view = next_view(here, newcomers, replica_size=size)
    blocks = [view[first : first + size] for first in range(0, len(view), size)]
    for block in blocks:
        first = block[0]
        assert first.local_rank % size == 0
        assert [(one.node, one.local_rank) for one in block] == [
            (first.node, first.local_rank + place) for place in range(size)
        ]
        assert len({one.worker[:3] for one in block}) == 1, "one that goes on, and one that comes"
    survivors = {block[0].worker for block in blocks if block[0].at is not None}
    assert survivors == {
        everyone[first].worker for first in range(0, len(everyone), size) if lost.isdisjoint(range(first, first + size))
    }
    assert len(blocks) <= max(len(survivors), shares if not survivors else max(shares, len(old)))
    nodes = [node for node, _ in groupby(candidate.node for candidate in view)]
    assert len(nodes) == len(set(nodes))


def failure(what: str = "ValueError: bad", step: int | None = 7, at_s: float = 0.0) -> Failure:
    return Failure(worker="w", what=what, step=step, at_s=at_s)


def again(*failures: Failure, restarts_max: int = 3) -> str | None:
    return repeated(failures[:-1], failures[-1], restarts_max=restarts_max, window_s=3600)


@pytest.mark.parametrize("what", ["ValueError: bad", "exit status 3", "SIGSEGV", "hang"])
def test_the_same_failure_twice_at_one_step_is_a_bug(what: str) -> None:
    assert again(failure(what), failure(what)) == "the same failure twice at step 7"
    assert again(failure(what), failure(what, at_s=1e6)) == "the same failure twice at step 7"


def test_an_exception_at_one_step_is_known_by_its_kind() -> None:
    """Its text may hold an address or the number of a process, and the run would be started for ever."""
    assert again(failure("ValueError: at 0x7f01"), failure("ValueError: at 0x7f02")) is not None
    assert again(failure("ValueError: bad"), failure("KeyError: bad")) is None


def test_the_same_failure_at_another_step_is_a_bug_only_if_it_goes_on() -> None:
    steps = [failure(step=step) for step in range(5)]
    assert again(*steps[:3]) is None
    assert "4 times within 3600 s" in str(again(*steps[:4]))
    assert again(*steps[:3], failure("ValueError: other", step=4)) is None


def test_failures_outside_the_window_do_not_count() -> None:
    old = [failure(step=step) for step in range(3)]
    assert again(*old, failure(step=4, at_s=3601)) is None


def test_failures_before_the_first_step_count_within_the_window() -> None:
    """A machine that fails to start once a day is no bug of the script."""
    assert again(failure(step=None), failure(step=None, at_s=60)) == "the same failure twice before its first step"
    assert again(failure(step=None), failure(step=None, at_s=3601)) is None


def test_a_run_that_can_save_nothing_any_more_ends_at_once() -> None:
    """A new coordinator would count its failures from none, and train on."""
    failed = failure(f"{SavesFailed.__module__}.{SavesFailed.__qualname__}: 10 saves in a row failed")
    assert repeated([], failed, restarts_max=3, window_s=100) == "nothing can be saved any more"


def test_a_run_that_another_job_has_taken_over_ends_at_once() -> None:
    """Its next coordinator would meet the same at its next save, and train in vain until then."""
    evicted = failure(f"{Evicted.__module__}.{Evicted.__qualname__}: claim 1 is no longer ours")
    assert repeated([], evicted, restarts_max=3, window_s=100) == "another job has taken this run over"


def test_scripts_that_go_different_ways_need_no_second_failure_to_be_known_as_a_bug() -> None:
    newest = failure(f"{CollectiveMismatch.__module__}.{CollectiveMismatch.__qualname__}: rank 0 evaluates")
    assert repeated([], newest, restarts_max=3, window_s=100) == "the script does not do the same on all workers"


def test_max_restarts_0_allows_no_failure_at_all() -> None:
    assert again(failure(), restarts_max=0) is not None

"""Who stores which object: each is stored once where all is well, and all are, whoever is slow, silent or gone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_checkpoint.save.helping.dealing import COMMITS, Dealing


def simulated(objects: int, takes_s: dict[int, float | None], gone_s: dict[int, float]) -> tuple[Dealing, float, int]:
    """How a save goes: what each object takes each party, None: for ever. Returns the end of it, when that was, and how
    many objects were begun twice.

    gone_s  when a helper is lost
    """
    dealing = Dealing(objects, [one for one in takes_s if one != COMMITS])
    at: dict[int, tuple[int, float | None]] = {}
    now_s, begun = 0.0, 0
    while not dealing.done:
        for who in takes_s:
            if who in gone_s and now_s >= gone_s[who] and who != COMMITS:
                if gone_s[who] >= 0:
                    gone_s[who] = -1.0
                    at.pop(who, None)
                    dealing.lose(who)
                continue
            if who not in at and (index := dealing.take(who, now_s)) is not None:
                took_s = takes_s[who]
                at[who] = index, None if took_s is None else now_s + took_s
                begun += 1
        ends = [end_s for _, end_s in at.values() if end_s is not None]
        ends += [when_s for when_s in gone_s.values() if when_s > now_s]
        if COMMITS not in at and (overtakes_s := dealing.overtakes_s()) is not None:
            ends.append(overtakes_s)
        now_s = max(now_s, min(ends))
        for who, (index, end_s) in [*at.items()]:
            if end_s is not None and end_s <= now_s:
                del at[who]
                dealing.has_stored(who, index, now_s)
    return dealing, now_s, begun - objects


@pytest.mark.parametrize(("objects", "parties"), [(8, 2), (8, 4), (24, 3), (100, 8)])
def test_equals_store_equal_parts_at_once_and_nothing_twice(objects: int, parties: int) -> None:
    dealing, end_s, twice = simulated(objects, dict.fromkeys(range(parties), 1.0), {})
    assert end_s == -(-objects // parties)
    assert twice == 0
    counts = [list(dealing.stored.values()).count(who) for who in range(parties)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("come_s", [0.0, 0.5])
def test_who_commits_stores_many_at_once_and_leaves_the_others_theirs(come_s: float) -> None:
    """It begins before anybody has come, and could begin with all."""
    dealing = Dealing(16, [1, 2, 3])
    begun = {who: [] for who in range(4)}  # type: dict[int, list[int]]

    def takes(who: int, at_once: int, now_s: float) -> None:
        while len(begun[who]) < at_once and (index := dealing.take(who, now_s)) is not None:
            begun[who].append(index)

    takes(COMMITS, 8, 0.0)
    for who in (1, 2, 3):
        takes(who, 4, come_s)
    assert [len(begun[who]) for who in range(4)] == [4, 4, 4, 4]


def test_who_commits_stores_the_rest_at_once_where_nobody_comes() -> None:
    dealing = Dealing(16, [1, 2, 3])
    own = [dealing.take(COMMITS, 0.0) for _ in range(4)]
    assert dealing.take(COMMITS, 0.0) is None
    assert own[0] is not None
    dealing.has_stored(COMMITS, own[0], 1.0)
    assert dealing.take(COMMITS, 0.9) is not None, "one for the one that is stored"
    assert dealing.take(COMMITS, 0.9) is None
    assert dealing.overtakes_s() == 1.0
    assert None not in [dealing.take(COMMITS, 1.0) for _ in range(11)], "nobody has come"
    assert dealing.is_alone


def test_who_commits_stores_all_at_once_where_all_others_are_lost() -> None:
    dealing = Dealing(8, [1, 2])
    assert None not in [dealing.take(who, 0.0) for who in (1, 2, COMMITS, COMMITS, COMMITS)]
    assert dealing.take(COMMITS, 0.0) is None
    dealing.lose(1)
    assert dealing.take(COMMITS, 0.0) is None
    dealing.lose(2)
    assert None not in [dealing.take(COMMITS, 0.0) for _ in range(5)]
    assert dealing.is_alone


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 8), st.integers(0, 2**32))
def test_who_commits_is_told_when_there_may_be_something_for_it(
    objects: int, helpers: int, at_once: int, seed: int
) -> None:
    """Later than now, or after the next thing that happens: else it would ask again and again."""
    draw, now_s = random.Random(seed), 0.0
    dealing = Dealing(objects, range(1, helpers + 1))
    at: list[tuple[int, int]] = []
    while not dealing.done:
        for who in draw.sample(range(helpers + 1), helpers + 1):
            while sum(one == who for one, _ in at) < at_once and (index := dealing.take(who, now_s)) is not None:
                at.append((who, index))
        if sum(who == COMMITS for who, _ in at) < at_once and not dealing.is_alone:
            assert (when_s := dealing.overtakes_s()) is None or when_s > now_s
        now_s += draw.choice([0.0, 0.2, 3.0])
        if at and (draw.random() < 0.8 or dealing.is_alone):
            who, index = at.pop(draw.randrange(len(at)))
            dealing.has_stored(who, index, now_s)


def test_of_one_object_nobody_else_is_asked() -> None:
    dealing, _, _ = simulated(1, {COMMITS: 1.0, 1: 1.0}, {})
    assert dealing.stored == {0: COMMITS}


def test_whoever_is_faster_stores_more() -> None:
    dealing, end_s, _ = simulated(30, {COMMITS: 4.0, 1: 1.0}, {})
    assert end_s < 30
    assert list(dealing.stored.values()).count(1) >= 22


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_whoever_is_silent_costs_little_more_than_to_be_without_it(silent: int) -> None:
    takes_s: dict[int, float | None] = dict.fromkeys(range(4), 1.0)
    takes_s[silent] = None
    dealing, end_s, twice = simulated(24, takes_s, {})
    assert end_s <= 24 / 3 + 2
    assert twice == 1
    assert silent not in dealing.stored.values()


def test_where_all_are_silent_the_save_is_made_alone() -> None:
    dealing, end_s, _ = simulated(24, {COMMITS: 1.0, 1: None, 2: None}, {})
    assert set(dealing.stored.values()) == {COMMITS}
    assert end_s == 24.0


def test_what_is_declined_who_commits_stores() -> None:
    dealing = Dealing(4, [1])
    assert [dealing.take(COMMITS, 0.0), dealing.take(1, 0.0)] == [0, 2]
    dealing.decline(1, 2)
    assert dealing.take(1, 0.0) == 3
    assert [dealing.take(COMMITS, 0.0), dealing.take(COMMITS, 0.0)] == [1, 2]
    assert dealing.take(1, 0.0) is None


def test_what_was_stored_first_counts() -> None:
    dealing = Dealing(2, [1])
    dealing.take(COMMITS, 0.0)
    dealing.take(1, 0.0)
    dealing.has_stored(COMMITS, 0, 1.0)
    assert dealing.take(COMMITS, 1.0) is None, "an object may take somewhat longer elsewhere"
    assert dealing.overtakes_s() == 1.5
    assert dealing.take(COMMITS, 1.5) == 1
    assert dealing.is_alone
    dealing.has_stored(1, 1, 1.6)
    dealing.has_stored(COMMITS, 1, 1.7)
    assert dealing.done
    assert dealing.stored == {0: COMMITS, 1: 1}


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 2**32))
def test_all_is_stored_whoever_is_slow_silent_or_lost(objects: int, helpers: int, seed: int) -> None:
    draw = random.Random(seed)
    takes_s: dict[int, float | None] = {who: draw.choice([0.1, 1.0, 7.0, None]) for who in range(1, helpers + 1)}
    gone_s = {who: draw.uniform(0, 20) for who in takes_s if draw.random() < 0.4}
    dealing, end_s, _ = simulated(objects, {COMMITS: 1.0, **takes_s}, gone_s)
    assert sorted(dealing.stored) == [*range(objects)]
    assert end_s <= objects + 2, "later than alone"

"""Compiled code has its limit in storage, and the folder goes on being of use when it is reached."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.loop.compiled.eviction import OBJECT_BYTES, Kept, NoRoom, Room, grouped, make_room
from elastic.loop.compiled.object import object_bytes
from tests.kit.sampling import examples

BYTES = 100


def kept(path: str, *names: str) -> Kept:
    return Kept(path, object_bytes(dict.fromkeys(names, BYTES)), frozenset(names))


def room(there: list[Kept], used: Iterable[str], *, objects: int = 3, nbytes: int = 10_000, besides: int = 0) -> Room:
    sizes = dict.fromkeys(used, BYTES)
    return make_room(there, sizes, bytes_max=nbytes, objects_max=objects, besides=besides)


def test_only_what_is_nowhere_is_added() -> None:
    assert room([kept("1", "a", "b"), kept("2", "c")], "abd") == Room(added=[["d"]], gone=[])


def test_the_oldest_goes_and_what_is_used_of_it_is_added_again() -> None:
    there = [kept("1", "a", "b"), kept("2", "c"), kept("3", "d")]
    assert room(there, "ae") == Room(added=[["a", "e"]], gone=["1"])


def test_the_limit_counts_whole_objects_and_what_nobody_can_read() -> None:
    there = [kept("1", "a"), kept("2", "b")]
    limit = sum(one.nbytes for one in there) + object_bytes({"c": BYTES})
    assert room(there, "c", nbytes=limit).gone == []
    assert room(there, "c", nbytes=limit - 1).gone == ["1"]
    assert room(there, "c", nbytes=limit, besides=1).gone == ["1"]


def test_what_younger_ones_hold_as_well_goes_before_it_is_the_oldest() -> None:
    there = [kept("1", "a"), kept("2", "b", "c"), kept("3", "b"), kept("4", "c", "d")]
    assert room(there, "e", objects=9) == Room(added=[["e"]], gone=["2"])


def test_more_than_the_limit_moves_nothing() -> None:
    with pytest.raises(NoRoom, match="at most 300 are kept"):
        room([kept("1", "z")], "abcd", nbytes=300)


def test_one_save_is_few_objects_of_bounded_size() -> None:
    sizes = {"a": OBJECT_BYTES // 2, "b": OBJECT_BYTES // 2, "c": 1, "d": OBJECT_BYTES + 1, "e": 1}
    assert grouped(sizes) == [["a", "b"], ["c"], ["d"], ["e"]]


NAMES = st.frozensets(st.sampled_from("abcdefghij"))
OBJECTS = st.lists(NAMES.filter(bool), max_size=8)


@given(objects=OBJECTS, one=NAMES, other=NAMES)
@settings(max_examples=examples(500))
def test_two_that_make_room_at_once_keep_what_both_use(
    objects: list[frozenset[str]], one: frozenset[str], other: frozenset[str]
) -> None:
    """Each sees what was there before, and none knows what the other does."""
    there = [kept(str(number), *sorted(names)) for number, names in enumerate(objects)]
    rooms = [room(there, sorted(used), nbytes=1600) for used in (one, other)]
    for made, used in zip(rooms, (one, other), strict=True):
        stays = [one for one in there if one.path not in made.gone]
        assert used <= held(stays, [made])
        assert len(stays) + len(made.added) <= 3
        sizes = [object_bytes(dict.fromkeys(names, BYTES)) for names in made.added]
        assert sum(one.nbytes for one in stays) + sum(sizes) <= 1600
    stays = [one for one in there if not any(one.path in made.gone for made in rooms)]
    assert one & other <= held(stays, rooms)


def held(stays: list[Kept], rooms: list[Room]) -> frozenset[str]:
    added = (name for made in rooms for names in made.added for name in names)
    return frozenset().union(*(one.names for one in stays), added)

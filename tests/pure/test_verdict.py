"""Which workers are wrong, where they gave different bits for one share, or hold different ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elastic.loop.verdict import apart, wrong


@pytest.mark.parametrize(
    ("first", "again", "odd"),
    [
        ({0: "a", 1: "b"}, {0: "aa", 1: "bb", 2: "aa"}, {1}),
        ({0: "a", 1: "b"}, {0: "aa", 1: "bc", 2: "aa"}, {1}),
        ({0: "a", 1: "b"}, {0: "aa", 1: "aa", 2: "aa"}, {1}),
        ({0: "a", 1: "b"}, {0: "aa", 1: "aa", 2: "cc"}, set()),
        ({0: "a", 1: "b"}, {0: "cd", 1: "ce", 2: "ff"}, set()),
        ({0: "a", 1: "b"}, {0: "cc", 1: "cc", 2: "dd"}, set()),
        ({0: "a", 1: "b"}, {0: "aa", 1: "bb", 2: "cc"}, set()),
        ({0: "a", 1: "b"}, {0: "aa", 1: "bb"}, set()),
        ({0: "a", 1: "b"}, {0: "aa", 1: "aa"}, set()),
        ({0: "a", 1: "b"}, {0: "aa", 1: "bb", 2: "bb", 3: "aa"}, set()),
        ({0: "a", 1: "b"}, {0: "aa", 1: "bb", 2: "cc", 3: "aa", 4: "aa"}, {1, 2}),
    ],
    ids=[
        "always",
        "each time otherwise",
        "once",
        "once, and another one since",
        "a count of bodies",
        "by chance two agree, on what none of the two had given",
        "each its own",
        "two",
        "two, once",
        "two against two",
        "two of five",
    ],
)
def test_who_is_wrong(first: dict[int, str], again: dict[int, str], odd: set[int]) -> None:
    assert wrong(first, again) == odd


@pytest.mark.parametrize(
    ("held", "odd"), [("aab", {2}), ("abc", set()), ("ab", set()), ("aabb", set()), ("abaca", {1, 3}), ("aaa", set())]
)
def test_who_holds_something_else(held: Sequence[str], odd: set[int]) -> None:
    assert apart(held) == odd

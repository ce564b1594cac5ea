"""The order of this project's own tests."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.order import SECONDS_A_TEST, SHORT, dealt

FILES = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 30), max_size=12)


def _pieces(tests: list[str], workers: int) -> list[list[str]]:
    """As pytest-xdist's work stealing hands them out at first."""
    left, pieces = len(tests), []
    for at in range(workers):
        pieces.append(left // (workers - at))
        left -= pieces[-1]
    ends = list(accumulate(pieces))
    return [tests[end - count : end] for count, end in zip(pieces, ends, strict=True)]


@given(st.fixed_dictionaries(dict.fromkeys([*SECONDS_A_TEST, "another"], FILES)), st.integers(2, 6))
def test_every_test_is_run_once_and_a_file_that_waits_in_one_go(
    counts: dict[str, dict[str, int]], workers: int
) -> None:
    files = {
        f"{room}/{name}": [f"{room}/{name}:{n}" for n in range(count)]
        for room in counts
        for name, count in counts[room].items()
    }
    order = dealt(files, {file: file.split("/")[0] for file in files}, workers)

    assert sorted(order) == sorted(test for tests in files.values() for test in tests)
    for file, tests in files.items():
        if not file.startswith(SHORT):
            begin = order.index(tests[0])
            assert order[begin : begin + len(tests)] == tests


def test_each_worker_begins_with_what_waits_and_ends_with_what_is_short() -> None:
    rooms = {"hosts": (4, 3), "processes": (6, 10), "storage": (5, 20), "pure": (20, 30)}
    files = {
        f"{room}/{at}": [f"{room}/{at}:{n}" for n in range(each)]
        for room, (many, each) in rooms.items()
        for at in range(many)
    }

    pieces = _pieces(dealt(files, {file: file.split("/")[0] for file in files}, 3), 3)

    for piece in pieces:
        seen = list(dict.fromkeys(test.split("/")[0] for test in piece))
        assert seen == [room for room in rooms if room in seen]
        assert seen[-1] == SHORT
    seconds = [sum(SECONDS_A_TEST[test.split("/")[0]] for test in piece) for piece in pieces]
    assert max(seconds) <= 1.5 * min(seconds)

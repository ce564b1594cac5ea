"""Batches come out in the order that was asked for, whatever arrives when and however often the order changes.

The loader around the bookkeeping runs with a stand-in for its processes, so that it can be cut at every line.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.data import ahead as ahead_module
from elastic.data import loader as loader_module
from elastic.data.ahead import Ahead
from elastic.data.loader import Loader, Request
from elastic.events.observer import Observer

MOST = 4


def request(*indices: int, epoch: int = 0) -> Request:
    return Request(np.full(len(indices), epoch, dtype=np.int64), np.array(indices, dtype=np.int64))


def requests(names: Iterable[int]) -> list[Request]:
    return [request(name) for name in names]


class Reading:
    """Bookkeeping with a reader that finishes in any order, and notes what it read."""

    def __init__(self) -> None:
        self.ahead = Ahead(MOST)
        self.working: dict[int, Request] = {}
        self.read: list[int] = []
        self.abandoned: set[int] = set()

    def submit(self) -> None:
        for ticket, asked in self.ahead.submissions():
            self.working[ticket] = asked
            self.read.append(int(asked.indices[0]))
        assert len(self.working) <= MOST

    def arrive(self, which: int) -> None:
        if self.working:
            ticket = sorted(self.working)[which % len(self.working)]
            asked = self.working.pop(ticket)
            if ticket in self.abandoned and which % 2:
                self.ahead.dropped(ticket)
            else:
                self.ahead.arrived(ticket, asked)
            assert len(self.ahead._results) <= MOST + 1
        self.submit()

    def lose(self) -> None:
        self.working.clear()
        self.ahead.lost()
        self.submit()

    def next(self, order: Iterator[int]) -> int | None:
        if self.ahead.head() is None:
            return None
        self.submit()
        while not self.ahead.ready:
            self.arrive(next(order))
        self.submit()
        return int(self.ahead.take().indices[0])

    def redirect(self, names: Iterable[int]) -> None:
        self.ahead.redirect(requests(names))
        self.abandoned |= self.ahead.abandon()
        self.submit()


SEQUENCE = st.lists(st.integers(0, 9), max_size=12)
ACTS = st.lists(
    st.one_of(st.just("next"), st.just("next"), st.integers(0, MOST), st.just("lost"), SEQUENCE),
    max_size=40,
)


@given(SEQUENCE, ACTS, st.lists(st.integers(0, MOST), min_size=1))
def test_every_sequence_is_delivered_in_order_and_within_its_bounds(
    first: list[int], acts: list[Any], order: list[int]
) -> None:
    """Losses, joins and results may come at any time; a batch out of its place would train the wrong share."""
    turns = itertools.cycle(order)
    reading = Reading()
    reading.redirect(first)
    left = list(first)
    for act in acts:
        if act == "next":
            assert reading.next(turns) == (left.pop(0) if left else None)
        elif act == "lost":
            reading.lose()
        elif isinstance(act, int):
            reading.arrive(act)
        else:
            reading.redirect(act)
            left = list(act)
    assert [reading.next(turns) for _ in range(len(left) + 1)] == [*left, None]


class Stored:
    """Stands in for loader processes: reads when it is asked for a result, the latest submission first."""

    def __init__(self, reader: Any, *, num_workers: int, pin_memory: bool) -> None:
        self.reader = reader
        self.submitted: list[tuple[int, Request]] = []
        self.abandoned: set[int] = set()

    def submit(self, ticket: int, asked: Request) -> None:
        self.submitted.append((ticket, asked))

    def abandon(self, tickets: Iterable[int]) -> None:
        self.abandoned.update(tickets)

    def poll(self) -> tuple[int, Any] | None:
        ticket, asked = self.submitted.pop()
        return ticket, self.reader(asked, lambda: ticket in self.abandoned)

    def alive(self) -> bool:
        return True

    def end(self) -> None:
        self.submitted.clear()


class Numbers:
    def __getitem__(self, index: int) -> int:
        return index


class Cut(BaseException):
    """As a Ctrl-C would be."""


def cut_at(line: int, act: Any) -> bool:
    """Runs `act` and raises Cut at the line-th line that it executes in the loader or its bookkeeping."""
    passed = 0
    files = {loader_module.__file__, ahead_module.__file__}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            passed += 1
            if passed == line:
                raise Cut
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Cut:
        return True
    finally:
        sys.settrace(before)
    return False


def opened(monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setattr(loader_module, "LoaderProcesses", Stored)
    made = Loader(Numbers(), seed=0, observer=Observer(), num_workers=2)
    made.open(requests(range(20)))
    assert [int(made.next().batch) for _ in range(3)] == [0, 1, 2]
    return made


def rest(made: Loader) -> tuple[list[int], str | None]:
    """The batches up to the end, and the error if that is what ended them."""
    seen: list[int] = []
    while True:
        try:
            seen.append(int(made.next().batch))
        except StopIteration:
            return seen, None
        except RuntimeError as broken_off:
            return seen, str(broken_off)


def test_a_loader_that_is_cut_anywhere_in_next_delivers_what_it_owes_or_says_that_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No example is skipped or read twice, and no sequence ends early without an error."""
    cuts, line, broken_off = 0, 1, 0
    while True:
        made = opened(monkeypatch)
        made.redirect(requests([9, 5, 3, 20, 21, 22]))
        assert int(made.next().batch) == 9
        if not cut_at(line, made.next):
            break
        cuts, line = cuts + 1, line + 1
        seen, said = rest(made)
        if said is None:
            # Cut in its last lines, `next` has taken the batch; the caller cannot have it.
            assert seen in ([5, 3, 20, 21, 22], [3, 20, 21, 22])
        else:
            assert "broke off" in said
            assert seen == [5, 3, 20, 21, 22][: len(seen)]
            broken_off += 1
        made.redirect(requests([8, 7]))
        assert rest(made) == ([8, 7], None)
    assert cuts > 30
    assert 0 < broken_off < cuts


@pytest.mark.parametrize("act", ["redirect", "open", "close"])
def test_a_loader_that_is_cut_anywhere_in_a_change_of_sequence_can_be_given_another(
    act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next loss may come while a recovery from the last is under way."""
    cuts, line = 0, 1
    while True:
        made = opened(monkeypatch)
        change = made.close if act == "close" else lambda: getattr(made, act)(requests([9, 5, 3, 20, 21, 22]))  # noqa: B023
        if not cut_at(line, change):
            break
        cuts, line = cuts + 1, line + 1
        made.redirect(requests([5, 3, 22, 8]))
        assert rest(made) == ([5, 3, 22, 8], None)
    assert cuts > 5

"""Who watches the sources of notices, and the signals of a process, and what is told of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from elastic.preemption.notice import Kind, Notice
from elastic.preemption.process_notices import ProcessNotices
from elastic.preemption.signals import SignalNotices
from elastic.preemption.sources.source import Source, SourceFailed
from elastic.preemption.watcher import Watcher

LONG_S = 60.0


def notice(id: str, kind: Kind = Kind.LEAVE, by_s: float | None = None) -> Notice:
    return Notice(source="test", id=id, kind=kind, why=f"why {id}", by_s=by_s)


# the watcher


class Said(Source):
    """What a test makes it say; how often it was asked."""

    name = "said"
    every_s = 0.01

    def __init__(self) -> None:
        self.says: Callable[[], Sequence[Notice]] = list
        self.looks = 0
        self.left_on: list[str] = []

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Said:
        return cls()

    def look(self) -> Sequence[Notice]:
        self.looks += 1
        return self.says()

    def gone(self, ids: object) -> None:
        self.left_on += list(ids)  # type: ignore[call-overload]


class Heard:
    def __init__(self, *sources: Source) -> None:
        self.told: list[Notice] = []
        self.lines: list[str] = []
        self.watcher = Watcher(sources, tell=self.told.append, say=self.lines.append)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + LONG_S
        while not holds():
            assert time.monotonic() < until_s, (self.told, self.lines)
            time.sleep(0.005)


@pytest.fixture
def heard() -> Iterator[Callable[..., Heard]]:
    made: list[Heard] = []

    def make(*sources: Source) -> Heard:
        made.append(Heard(*sources))
        made[-1].watcher.start()
        return made[-1]

    yield make
    for one in made:
        one.watcher.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("elastic-notices")]


def test_the_watcher_tells_each_notice_once_with_its_node_and_once_more_when_it_is_gone(
    heard: Callable[..., Heard],
) -> None:
    source = Said()
    here = heard(source)
    source.says = lambda: [notice("a")]
    here.wait_for(lambda: bool(here.told))
    looks = source.looks
    here.wait_for(lambda: source.looks > looks + 3)
    source.says = list
    here.wait_for(lambda: len(here.told) == 2)
    assert [(one.id, one.withdrawn, bool(one.node)) for one in here.told] == [("a", False, True), ("a", True, True)]


def test_a_source_that_hangs_or_fails_delays_no_other_and_is_told_of_once(heard: Callable[..., Heard]) -> None:
    hangs, fails, works, end = Said(), Said(), Said(), threading.Event()

    def hang() -> Sequence[Notice]:
        end.wait(LONG_S)
        return []

    def fail() -> Sequence[Notice]:
        raise SourceFailed("no good")

    hangs.says, fails.says = hang, fail
    here = heard(hangs, fails, works)
    here.wait_for(lambda: fails.looks > 3)
    works.says = lambda: [notice("a")]
    here.wait_for(lambda: bool(here.told))
    end.set()
    assert here.lines == ["notices from said are not heard, and asked for again: no good"]


def test_a_failure_withdraws_nothing(heard: Callable[..., Heard]) -> None:
    source = Said()

    def fail() -> Sequence[Notice]:
        raise SourceFailed("no good")

    source.says = lambda: [notice("a")]
    here = heard(source)
    here.wait_for(lambda: bool(here.told))
    source.says = fail
    here.wait_for(lambda: bool(here.lines))
    source.says = lambda: [notice("a")]
    looks = source.looks
    here.wait_for(lambda: source.looks > looks + 2)
    assert [one.id for one in here.told] == ["a"]


def test_a_deadline_that_comes_nearer_is_told_and_one_that_is_put_off_or_counted_down_is_not(
    heard: Callable[..., Heard],
) -> None:
    source = Said()
    here = heard(source)
    for by_s in (1000.0, 1030.0, 999.5, 900.0, 950.0, 899.0):
        looks = source.looks
        source.says = partial(list, [notice("a", by_s=by_s)])
        here.wait_for(lambda: source.looks > looks + 2)  # noqa: B023  # it ends here
    assert [(one.by_s, one.sooner) for one in here.told] == [(1000.0, False), (900.0, True)]


def test_a_process_remembers_the_notice_that_leaves_it_least_time_and_each_hint_once() -> None:
    told: list[Notice] = []
    process = ProcessNotices(SignalNotices(()), say=print)
    process.install(told.append)
    try:
        for one in (notice("a"), notice("b", by_s=90.0), notice("c", by_s=120.0), notice("h", Kind.HINT)):
            process._on_notice(one)
        process._on_notice(Notice(source="test", id="b", withdrawn=True))
        process._on_notice(replace(notice("h", Kind.HINT, by_s=9.0), sooner=True))
        assert process.leave is not None
        assert (process.leave.id, [one.id for one in told]) == ("b", ["a", "b", "c"])
        assert [one and one.id for one in (process.take_hint(), process.take_hint())] == ["h", None]
    finally:
        process.close()


# signals


def test_sigusr1_is_a_notice_with_the_grace_period_that_is_known() -> None:
    told: list[Notice] = []
    arrived = threading.Event()

    def tell(notice: Notice) -> None:
        told.append(notice)
        arrived.set()

    notices = SignalNotices(grace_s=30.0)
    notices.install(tell)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert arrived.wait(LONG_S)
    finally:
        notices.close()
    (one,) = told
    left = one.left_s(time.monotonic())
    assert (one.source, left is not None and 0 < left <= 30.0) == ("SIGUSR1", True)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_signal_that_the_script_has_taken_stays_its_own() -> None:
    taken: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: taken.append(number))
    try:
        notices = SignalNotices()
        told: list[Notice] = []
        notices.install(told.append)
        os.kill(os.getpid(), signal.SIGUSR1)
        notices.close()
        assert (taken, told) == ([signal.SIGUSR1], [])
    finally:
        signal.signal(signal.SIGUSR1, before)

"""When workers come and go, a loader is given another sequence in the midst of reading, and delivers that alone."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.data.loader import Loader, Request
from elastic.errors import ExampleError, LoaderError, LoaderTimeout
from tests.kit.loading import (
    Asked,
    Bomb,
    Gated,
    Held,
    children,
    consecutive,
    forget_earlier_children,
    loader,
    mapped_files,
    names,
    read_all,
    request,
    settles_at,
)

pytestmark = pytest.mark.nightly(sample=5, of="loaders that are redirected")

IN_BOTH = pytest.mark.parametrize("num_workers", [0, 2])


@pytest.fixture(autouse=True)
def _children_of_earlier_tests() -> None:
    forget_earlier_children()


class PeerGone(Exception):
    """What a run raises to end a wait."""


class Interrupt:
    """Gives a wait up when it has been asked `at` times; then never again."""

    def __init__(self, at: int = 2) -> None:
        self.asked = 0
        self.at = at

    def __call__(self) -> None:
        self.asked += 1
        if self.asked == self.at:
            raise PeerGone


@IN_BOTH
def test_redirected_the_loader_delivers_the_new_sequence_alone(num_workers: int) -> None:
    """A batch of the old shares would be trained twice, on two workers."""
    with loader(Asked(lambda i: i), num_workers=num_workers) as made:
        made.redirect(consecutive(50))  # never opened: the same as open
        started = children()
        assert made.next().indices.tolist() == [0, 1, 2]
        made.redirect([request(700), request(800), request(3, 4, 5), request(700)])
        assert names(made) == [[700], [800], [3, 4, 5], [700]]
        made.redirect(request(i) for i in range(900, 920))
        made.redirect([])
        with pytest.raises(StopIteration):
            made.next()
        made.redirect([request(1)])
        assert children() == started
        assert names(made) == [[1]]


def test_what_was_read_ahead_is_not_read_again() -> None:
    """A recovery that waits for its data lasts as long as the slowest example."""
    with Gated(1, 2) as dataset, loader(dataset, num_workers=2, interrupt=Interrupt()) as made:
        made.open(request(i, i + 10) for i in range(1, 5))
        with pytest.raises(PeerGone):
            made.next()
        made.redirect([request(2, 12), request(5), request(1, 11), request(3, 13), request(3, epoch=1)])
        dataset.open(1)
        dataset.open(2)
        assert names(made) == [[2, 12], [5], [1, 11], [3, 13], [3]]
        reads = dataset.reads()
    assert {i: reads[i] for i in (1, 2, 5, 11, 12, 13)} == dict.fromkeys((1, 2, 5, 11, 12, 13), 1)
    assert reads[3] == 2  # once in each epoch


def test_a_stale_read_that_hangs_does_not_hold_up_the_other_child() -> None:
    """Its answer is nobody's any more."""
    with Gated(1) as dataset, loader(dataset, num_workers=2) as made:
        made.open(request(i) for i in (1, 2, 3, 4))
        assert set(dataset.wait_for_reads(3)) == {1, 2, 4}  # 3 is for the one that hangs
        made.redirect(request(i) for i in range(10, 30))
        assert names(made) == [[i] for i in range(10, 30)]
        dataset.open(1)


def test_an_error_of_a_stale_request_is_raised_only_if_it_is_asked_for_again() -> None:
    """The picture that is broken is another worker's now; if it stays this one's, it must not vanish."""
    with loader(Bomb(), num_workers=2) as made:
        made.open([request(1), request(17), request(2), request(3)])
        assert made.next().indices.tolist() == [1]
        made.redirect([request(4), request(5), request(6), request(7), request(8)])
        assert names(made) == [[4], [5], [6], [7], [8]]

        made.redirect([request(1), request(17), request(2), request(3)])
        assert made.next().indices.tolist() == [1]
        made.redirect([request(9), request(17), request(10)])
        started = children()
        assert made.next().indices.tolist() == [9]
        with pytest.raises(ExampleError, match=r"dataset\[17\]") as failed:
            made.next()
        assert failed.value.index == 17
        assert names(made) == [[10]]
        assert children() == started


@pytest.mark.parametrize("noticed", ["before", "by next"])
def test_dead_processes_are_replaced_when_the_loader_is_redirected(noticed: str) -> None:
    """A dead child's share of the queue would never come."""
    with loader(Asked(lambda i: i), num_workers=2) as made:
        made.open(consecutive(50))
        made.next()
        victims = children()
        end = os.pidfd_open(victims[0])
        os.kill(victims[0], signal.SIGKILL)
        assert select.select([end], [], [], 30)[0] == [end]
        os.close(end)
        if noticed == "by next":
            with pytest.raises(LoaderError, match="1 of 2 died"):
                read_all(made)
        made.redirect(consecutive(5, size=1))
        assert names(made) == [[0], [1], [2], [3], [4]]
        assert not set(victims) & set(children())


def test_after_a_timeout_the_stuck_process_is_replaced() -> None:
    """The storage came back, and the read that hangs does not know."""
    with Gated(3) as dataset, loader(dataset, num_workers=1, timeout_s=0.5) as made:
        made.open([request(3), request(4)])
        stuck = children()
        with pytest.raises(LoaderTimeout):
            made.next()
        dataset.gates.clear()
        made.redirect([request(3), request(5)])
        assert names(made) == [[3], [5]]
        assert not set(stuck) & set(children())


def test_a_sequence_that_breaks_off_does_not_look_as_if_it_had_ended() -> None:
    """A generator that has raised says ever after that it is at its end."""

    def broken() -> Iterator[Request]:
        yield request(1)
        yield request(2)
        raise ZeroDivisionError

    with loader(Asked(lambda i: i), num_workers=2) as made:
        with pytest.raises(ZeroDivisionError):
            made.open(broken())
        assert [made.next().indices.tolist() for _ in range(2)] == [[1], [2]]
        with pytest.raises(RuntimeError, match="broke off"):
            made.next()
        made.redirect([request(3)])
        assert names(made) == [[3]]


def test_two_hundred_redirects_leave_nothing_behind() -> None:
    """Processes, threads, files and shared memory, of batches that arrive and are dropped above all."""
    most = 2 * 2  # two requests per process
    with loader(Asked(lambda i: torch.full((1000,), i)), num_workers=2) as made:
        made.open(consecutive(20))  # what is set up once, such as multiprocessing's own helpers, is not counted
        made.next()
        earlier = children()
        made.close()
        closed = Held.now(earlier)
        made.open(consecutive(20))
        started = children()
        names(made)
        opened = Held.now(earlier + started)
        for turn in range(200):
            made.redirect(consecutive(20, epoch=turn))
            for _ in range(turn % 4):
                made.next()
            assert mapped_files() - opened.mapped <= most + 1
        made.redirect([])
        made.redirect(consecutive(20, epoch=1000))
        names(made)
        assert children() == started
        kept_for_a_later_request = Held(mapped=most, files=most, threads=0, shared_memory=0)
        settles_at(Held(*map(sum, zip(opened, kept_for_a_later_request, strict=True))), earlier + started)
        made.close()
        settles_at(closed, earlier + started)


@given(st.lists(st.one_of(st.integers(1, 6), st.lists(st.integers(0, 30), max_size=10)), max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mixture_of_reading_and_redirecting_delivers_what_was_asked_for_last(
    redirected: Loader, acts: list[int | list[int]]
) -> None:
    """Workers are lost and join at any time, and in quick succession."""
    redirected.redirect([])
    left: list[int] = []
    for act in acts:
        if isinstance(act, list):
            left = list(act)
            redirected.redirect([request(i, i + 100) for i in act])
        else:
            for i in left[:act]:
                assert redirected.next().batch.tolist() == [i, i + 100]
            left = left[act:]
    assert [loaded.batch.tolist() for loaded in read_all(redirected)] == [[i, i + 100] for i in left]


@pytest.fixture
def redirected() -> Iterator[Loader]:
    """One loader for all the examples of a property, in the processes that it began with."""
    with loader(Asked(lambda i: i), num_workers=2) as made:
        made.open([])
        started = children()
        yield made
        assert children() == started

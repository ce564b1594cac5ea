"""Examples arrive in order, each read with its own random stream, and loader processes never outlive their worker."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from elastic.data.loader import ExampleError, Loader, LoaderError, LoaderTimeout, Request
from elastic.observe.observer import Observer

IN_BOTH = pytest.mark.parametrize("num_workers", [0, 2])


class Augmented:
    """Every kind of randomness, as an image augmentation draws it."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64), index


class Asked:
    """A dataset that answers with whatever a function makes of the index, in the process that reads."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return self.answer(index)


def request(*indices: int, epoch: int = 0) -> Request:
    return Request(np.full(len(indices), epoch, dtype=np.int64), np.array(indices, dtype=np.int64))


def consecutive(count: int, size: int = 3, epoch: int = 0) -> Iterator[Request]:
    for first in range(0, count * size, size):
        yield request(*range(first, first + size), epoch=epoch)


@contextlib.contextmanager
def loader(dataset: Any, **options: Any) -> Iterator[Loader]:
    """A loader that is closed, and whose children are gone, whatever the test does."""
    made = Loader(dataset, **{"seed": 7, "observer": Observer(), **options})
    try:
        yield made
    finally:
        made.close()
        assert children() == []


_earlier: set[int] = set()


@pytest.fixture(autouse=True)
def _children_of_earlier_tests() -> None:
    """multiprocessing's fork server, which other tests start, lives as long as this process."""
    _earlier.clear()
    _earlier.update(child.pid for child in psutil.Process().children(recursive=True))


def children() -> list[int]:
    """The processes that this test has started."""
    return [child.pid for child in psutil.Process().children(recursive=True) if child.pid not in _earlier]


def states() -> tuple[Any, str, list[int]]:
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


def read_all(made: Loader) -> list[Any]:
    loaded = []
    with contextlib.suppress(StopIteration):
        while True:
            loaded.append(made.next())
    return loaded


@IN_BOTH
def test_batches_arrive_in_the_order_of_the_requests(num_workers: int) -> None:
    """Loader processes finish in any order; a step's shares do not care who was faster."""
    with loader(Asked(lambda i: i * 10), num_workers=num_workers) as made:
        made.open([request(5, 3, 3), request(0), request(999, 1)])
        loaded = read_all(made)

    assert [item.batch.tolist() for item in loaded] == [[50, 30, 30], [0], [9990, 10]]
    assert [item.indices.tolist() for item in loaded] == [[5, 3, 3], [0], [999, 1]]


def test_an_augmentation_depends_on_epoch_and_example_alone() -> None:
    """Not on who reads it, beside what, or in which order: else a redone step would train on other pictures."""
    with loader(Augmented()) as made:
        made.open([request(4, 5, 6, epoch=2)])
        expected = made.next().batch[0]
    for num_workers in (0, 1, 2):
        with loader(Augmented(), num_workers=num_workers) as made:
            made.open([request(6, epoch=2), request(0, 5, 4, epoch=2), request(4, epoch=3)])
            first, second, other_epoch = (item.batch[0] for item in read_all(made))
        assert torch.equal(torch.stack([second[2], second[1], first[0]]), expected)
        assert not torch.equal(other_epoch[0], second[2])


def test_loader_processes_leave_this_process_streams_alone() -> None:
    """A share's dropout must not depend on num_workers, nor a user's own draws on when a view changed."""
    before = states()
    with loader(Augmented(), num_workers=2) as made:
        made.open(consecutive(5))
        read_all(made)

    assert states() == before


@IN_BOTH
def test_opening_again_drops_what_was_read_ahead(num_workers: int) -> None:
    """After a change of view this rank carries other shares; a batch of the old ones would be trained twice."""
    with loader(Asked(lambda i: i), num_workers=num_workers) as made:
        made.open(consecutive(50))
        assert made.next().indices.tolist() == [0, 1, 2]
        made.open([request(700), request(800)])
        assert [item.indices.tolist() for item in read_all(made)] == [[700], [800]]
        with pytest.raises(StopIteration):
            made.next()
        made.close()
        made.close()
        with pytest.raises(StopIteration):
            made.next()


def test_reading_ahead_is_bounded() -> None:
    """An endless run's plan is drawn as it is needed."""
    drawn: list[int] = []

    def endless() -> Iterator[Request]:
        while True:
            drawn.append(len(drawn))
            yield request(len(drawn))

    with loader(Asked(lambda i: i), num_workers=2) as made:
        made.open(endless())
        for _ in range(10):
            made.next()
    assert len(drawn) <= 10 + 2 * 2


class Bomb:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index == 17:
            raise KeyError("picture-17.png")
        return index


@IN_BOTH
def test_an_exception_in_the_dataset_names_the_example(num_workers: int) -> None:
    """Of a million files one is broken: the person on call needs its index, and the line that failed."""
    with loader(Bomb(), num_workers=num_workers) as made:
        made.open([request(16, epoch=3), request(1, 17, 2, epoch=3)])
        assert made.next().indices.tolist() == [16]
        with pytest.raises(ExampleError, match=r"dataset\[17\] in epoch 3 raised KeyError: 'picture-17.png'") as failed:
            made.next()

    assert (failed.value.epoch, failed.value.index) == (3, 17)
    traced = str(failed.value) if num_workers else str(failed.getrepr(chain=True))
    assert 'raise KeyError("picture-17.png")' in traced


@IN_BOTH
def test_an_exception_in_the_collate_function_names_its_examples(num_workers: int) -> None:
    """Pictures of unequal sizes are found here, by torch.stack, and not where they were read."""
    with loader(Asked(torch.zeros), num_workers=num_workers) as made:
        made.open([request(2, 3, epoch=1)])
        with pytest.raises(ExampleError, match=r"collate_fn of 2 examples \(2 of epoch 1, 3 of epoch 1\) raised"):
            made.next()


def test_a_wait_for_a_stuck_read_ends_with_its_name() -> None:
    """P9. A dead network file system answers never; and closing must not wait for it either."""
    with loader(Asked(lambda i: time.sleep(3600) if i == 3 else i), num_workers=1, timeout_s=0.5) as made:
        made.open([request(1), request(2, 3, epoch=4)])
        made.next()
        with pytest.raises(LoaderTimeout, match=r"missing  2 examples \(2 of epoch 4, 3 of epoch 4\)") as late:
            made.next()
    assert late.value.request.indices.tolist() == [2, 3]


def test_a_loader_process_that_is_killed_is_an_error_where_a_batch_is_asked_for() -> None:
    """And nowhere else: DataLoader's own handler would raise in the middle of whatever runs, an update included."""
    with loader(Asked(lambda i: time.sleep(3600) if i == 9 else i), num_workers=1) as made:
        made.open([request(1), request(9)])
        made.next()
        (victim,) = children()
        end = os.pidfd_open(victim)
        os.kill(victim, signal.SIGKILL)
        assert select.select([end], [], [], 30)[0] == [end]  # SIGCHLD arrives in this line, and raises nothing
        os.close(end)
        with pytest.raises(LoaderError, match=r"1 of 1 died \(pid \d+, exit code -9\), while 1 examples \(9 of epoch"):
            made.next()


def test_nothing_is_left_after_closing() -> None:
    """A run of a month changes its view a thousand times."""
    readers = [os.getpid()]

    def left() -> tuple[int, int, list[str]]:
        gc.collect()
        shared_memory = [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in readers)]
        return psutil.Process().num_fds(), psutil.Process().num_threads(), shared_memory

    with loader(Asked(lambda i: torch.full((1000,), i)), num_workers=2) as made:
        made.open(consecutive(20))  # what is set up once, such as multiprocessing's own helpers, is not counted
        made.next()
        made.close()
        before = left()
        assert before[2] == []
        for _ in range(5):
            made.open(consecutive(20))
            made.next()
            readers.extend(children())
        made.close()
        assert left() == before


class PeerGone(Exception):
    """What a run raises to end a wait."""


class Gated:
    """A dataset of which some examples are read only when the test opens them, and which notes every read."""

    def __init__(self, *closed: int) -> None:
        self.gates = {index: os.pipe() for index in closed}
        self.notes = os.pipe()

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        os.write(self.notes[1], index.to_bytes(2, "big"))
        if index in self.gates:
            os.read(self.gates[index][0], 1)
        return index

    def open(self, index: int) -> None:
        os.write(self.gates[index][1], b"x")

    def wait_for_reads(self, count: int) -> list[int]:
        """The indices of the next `count` reads that begin."""
        noted = [os.read(self.notes[0], 2) for _ in range(count)]
        return [int.from_bytes(note, "big") for note in noted]

    def reads(self) -> Counter[int]:
        os.set_blocking(self.notes[0], False)
        noted: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                noted += self.wait_for_reads(1)
        return Counter(noted)

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (*self.notes, *(end for gate in self.gates.values() for end in gate)):
            os.close(end)


class Interrupt:
    """Gives a wait up when it has been asked `at` times; then never again."""

    def __init__(self, at: int = 2) -> None:
        self.asked = 0
        self.at = at

    def __call__(self) -> None:
        self.asked += 1
        if self.asked == self.at:
            raise PeerGone


def names(made: Loader) -> list[list[int]]:
    return [loaded.indices.tolist() for loaded in read_all(made)]


def test_a_wait_that_is_given_up_loses_nothing() -> None:
    """A peer is lost while this worker waits for its data. The recovery begins now, and then the batch is still due."""
    with Gated(3) as dataset, loader(dataset, num_workers=2, interrupt=Interrupt()) as made:
        made.open([request(3), request(4)])
        started = children()
        with pytest.raises(PeerGone):
            made.next()
        dataset.open(3)
        assert names(made) == [[3], [4]]
        assert children() == started


def test_a_death_is_noticed_by_the_next_poll() -> None:
    """Out of memory, say. A worker that waits for a dead child holds all its peers up."""
    asked: list[list[int]] = []

    def kill_them() -> None:
        if not asked:
            for victim in children():
                end = os.pidfd_open(victim)
                os.kill(victim, signal.SIGKILL)
                assert select.select([end], [], [], 30)[0] == [end]
                os.close(end)
        asked.append(children())

    with Gated(1) as dataset, loader(dataset, num_workers=2, interrupt=kill_them) as made:
        made.open([request(1), request(2)])
        with pytest.raises(LoaderError, match="2 of 2 died"):
            made.next()
        # One poll may still bring the other child's result.
        assert len(asked) <= 2


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


def test_a_tensor_dataset_is_redirected_without_processes() -> None:
    with loader(TensorDataset(torch.arange(9)), num_workers=2) as made:
        made.open(consecutive(3))
        made.next()
        made.redirect([request(8), request(7)])
        assert names(made) == [[8], [7]]
        assert children() == []


def test_a_sequence_that_has_ended_can_be_followed_by_another_in_the_same_processes() -> None:
    """A newcomer may bring the last step back: to its own worker it was over."""
    with loader(Asked(lambda i: i), num_workers=2) as made:
        made.open(consecutive(3))
        started = children()
        for first in (100, 200, 300):
            read_all(made)
            with pytest.raises(StopIteration):
                made.next()
            made.redirect([request(first + i) for i in range(7)])
            assert names(made) == [[first + i] for i in range(7)]
        assert children() == started


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
        assert set(dataset.wait_for_reads(3)) == {1, 2, 4}  # 3 is for the child that hangs
        made.redirect(request(i) for i in range(10, 30))
        assert names(made) == [[i] for i in range(10, 30)]
        dataset.open(1)


def test_a_stale_request_is_not_read_to_its_end() -> None:
    """It stands before the new ones in its child's queue, and may be a hundred pictures long."""
    with Gated(1) as dataset, loader(dataset, num_workers=1) as made:
        made.open([request(1, *range(100, 200)), request(*range(200, 300))])
        assert dataset.wait_for_reads(1) == [1]
        made.redirect([request(2), request(3)])
        dataset.open(1)
        assert names(made) == [[2], [3]]
        assert dataset.reads() == {2: 1, 3: 1}
        started = children()
        made.redirect([request(1, *range(100, 103))])
        dataset.open(1)
        assert names(made) == [[1, 100, 101, 102]]
        assert children() == started


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


_refused: list[int] = []


def _unpacked(index: int) -> int:
    if not _refused:
        _refused.append(index)
        raise MemoryError("no room for a batch")
    return index


class Heavy:
    """Cannot be unpacked where it arrives, the first time."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.index,)


def test_a_batch_that_cannot_be_received_is_read_again() -> None:
    """Else every batch after it would be taken for its neighbour."""
    _refused.clear()
    with loader(Asked(lambda i: Heavy(i) if i == 2 else i), num_workers=1, collate_fn=lambda e: e[0]) as made:
        made.open(request(i) for i in range(5))
        assert [made.next().batch for _ in range(2)] == [0, 1]
        with pytest.raises(MemoryError):
            made.next()
        assert [loaded.batch for loaded in read_all(made)] == [2, 3, 4]
    assert _refused == [2]


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

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("/torch_")

    def left() -> tuple[int, int, int, list[str]]:
        gc.collect()
        shared_memory = [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in readers)]
        return mapped(), psutil.Process().num_fds(), psutil.Process().num_threads(), shared_memory

    most = 2 * 2  # two requests per process
    readers = [os.getpid()]
    with loader(Asked(lambda i: torch.full((1000,), i)), num_workers=2) as made:
        made.open(consecutive(20))  # what is set up once, such as multiprocessing's own helpers, is not counted
        made.next()
        made.close()
        closed = left()
        made.open(consecutive(20))
        started = children()
        readers += started
        names(made)
        opened = left()
        for turn in range(200):
            made.redirect(consecutive(20, epoch=turn))
            for _ in range(turn % 4):
                made.next()
            assert mapped() - opened[0] <= most + 1
        made.redirect([])
        made.redirect(consecutive(20, epoch=1000))
        names(made)
        now = left()
        assert children() == started
        assert now[0] - opened[0] <= most  # kept for a later request
        assert now[1] - opened[1] <= most
        assert now[2:] == opened[2:]
        made.close()
        assert left() == closed


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


def sockets_here() -> list[str]:
    families = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=int(name))
            families.append(found.family.name)
            found.detach()
    return families


def test_a_loader_process_holds_none_of_its_workers_connections() -> None:
    """One forked copy of a dead worker's gloo socket, and its peers wait for seconds instead of milliseconds."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0] as theirs,
    ):

        def answer(_: int) -> Any:
            try:
                said = ours.send(b"x")
            except BrokenPipeError:
                said = -1
            return sockets_here(), (said, ours.recv(1)), torch.get_num_threads()

        with loader(Asked(answer), num_workers=1, collate_fn=list) as made:
            made.open([request(0)])
            families, hung_up, threads = made.next().batch[0]
            ours.close()
            theirs.settimeout(10)
            heard = theirs.recv(1)  # while the child lives

    assert set(families) <= {"AF_UNIX"}
    assert hung_up == (-1, b"")
    assert heard == b""
    assert threads == 1


@pytest.mark.parametrize("moment", ["just forked", "at work"])
def test_loader_processes_stay_through_signals_to_the_whole_group(moment: str) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach them too; the worker still wants to finish its step (P8)."""
    with loader(Asked(lambda i: i), num_workers=2) as made:
        made.open(consecutive(100))
        if moment == "at work":
            made.next()
        for pid in children():
            for told in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                os.kill(pid, told)
        assert len(read_all(made)) == (99 if moment == "at work" else 100)


def test_programs_that_a_dataset_starts_can_still_be_told_to_stop() -> None:
    """An ignored signal is inherited by a decoder that dataset[i] runs; a handled one is not."""

    def decode(_: int) -> int:
        with subprocess.Popen(["sleep", "60"]) as decoder:
            decoder.terminate()
            return decoder.wait(10)

    with loader(Asked(decode), num_workers=1) as made:
        made.open([request(0)])
        assert made.next().batch.tolist() == [-signal.SIGTERM]


PARENT = """
    import os, sys, time, numpy as np
    from elastic.data.loader import Loader, Request
    from elastic.observe.observer import Observer

    class Slow:
        def __len__(self): return 1000
        def __getitem__(self, index):
            if index >= 5: time.sleep(3600)
            return os.getpid()

    loader = Loader(Slow(), seed=0, observer=Observer(), num_workers=2)
    loader.open(Request(np.zeros(1, dtype=np.int64), np.array([i])) for i in range(100))
    print(*{int(loader.next().batch) for _ in range(2)}, flush=True)
"""


@pytest.mark.parametrize("way", ["killed", "told to leave", "finished", "failed", "os._exit"])
def test_loader_processes_are_gone_when_their_worker_is(way: str) -> None:
    """However it ends, and although they are stuck in a read. Left behind, they would hold memory and ports."""
    last = {"finished": "", "failed": "raise ValueError", "os._exit": "os._exit(0)"}.get(way, "time.sleep(3600)")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT) + last],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        loaders: list[psutil.Process] = []
        try:
            assert parent.stdout is not None
            loaders = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
            assert len(loaders) == 2
            if way in ("killed", "told to leave"):
                parent.send_signal(signal.SIGKILL if way == "killed" else signal.SIGTERM)
            _, said = parent.communicate(timeout=60)
            left_behind = psutil.wait_procs(loaders, timeout=30)[1]
        finally:
            parent.kill()
            for loader in loaders:
                with contextlib.suppress(psutil.NoSuchProcess):
                    loader.kill()

    assert left_behind == []
    assert ("ValueError" in said) == (way == "failed")
    assert said.count("Error") == (1 if way == "failed" else 0)


def test_tensors_are_indexed_to_the_bytes_that_stacking_gives() -> None:
    """A drill wraps the dataset and so reads it example by example; it must train on the same bits."""

    class Wrapping(Observer):
        def dataset(self, dataset: Any) -> Any:
            return Asked(dataset.__getitem__)

    layouts = {
        "plain": torch.randn(50, 3, 4, 5),
        "integers": torch.arange(50),
        "bools": torch.arange(50) % 3 == 0,
        "bf16": torch.randn(50, 7).bfloat16(),
        "channels last": torch.randn(50, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(4, 50).T,
        "every other": torch.randn(100, 2)[::2],
        "expanded": torch.randn(1, 6).expand(50, 6),
    }
    for name, tensor in layouts.items():
        dataset = TensorDataset(tensor, torch.arange(50))
        batches = []
        for observer in (Observer(), Wrapping()):
            with loader(dataset, observer=observer) as made:
                made.open([request(4, 49, 0, 4)])
                batches.append(made.next())
        (fast, _), (slow, _) = (loaded.batch for loaded in batches)

        assert type(batches[0].batch) is type(batches[1].batch)
        assert torch.equal(fast, slow), name
        assert (fast.dtype, fast.stride()) == (slow.dtype, slow.stride()), name
        assert batches[0].indices.tolist() == batches[1].indices.tolist()


def test_a_tensor_dataset_needs_no_processes() -> None:
    """Sending its rows between processes would cost more than indexing them."""
    with loader(TensorDataset(torch.arange(9)), num_workers=4) as made:
        made.open([request(8, 1)])
        assert children() == []
        assert made.next().batch[0].tolist() == [8, 1]


@IN_BOTH
def test_observers_wrap_dataset_and_collate_function_once_and_before_the_fork(num_workers: int) -> None:
    """This is how a drill learns what was really read, without the loader knowing of drills."""

    class Noting(Observer):
        def dataset(self, dataset: Any) -> Any:
            return Asked(lambda i: (i, dataset[i]))

        def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
            return lambda examples: {"read": [i for i, _ in examples], "batch": collate_fn([e for _, e in examples])}

    with loader(Asked(lambda i: i * i), observer=Noting(), num_workers=num_workers, device=torch.device("cpu")) as made:
        made.open([request(3, 5)])
        batch = made.next().batch
    assert batch["read"] == [3, 5]
    assert batch["batch"].tolist() == [9, 25]


Pair = namedtuple("Pair", "left right")


class Moves:
    """A batch that knows how to move itself, as a tokenizer's encoding does."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def to(self, device: torch.device) -> Moves:
        return Moves(device.type)


@IN_BOTH
def test_batches_are_moved_whatever_their_shape(num_workers: int) -> None:
    """Collate functions return tuples, dictionaries, named tuples and objects of their own."""
    t = torch.ones(2)

    def collate(_: list[Any]) -> Any:
        return {"pair": Pair(t, [t, "text"]), "own": Moves(), "tuple": (t, 3), "none": None}

    device = torch.device("meta")  # a device of its own on every machine
    with loader(Asked(lambda i: i), collate_fn=collate, device=device, num_workers=num_workers) as made:
        made.open([request(0)])
        batch = made.next().batch

    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].left.device == batch["pair"].right[0].device == batch["tuple"][0].device == device
    assert (batch["pair"].right[1], batch["tuple"][1], batch["none"]) == ("text", 3, None)
    assert isinstance(batch["tuple"], tuple)
    assert batch["own"].device == "meta"


@pytest.mark.parametrize("wrong", [{"num_workers": -1}, {"num_workers": 1.5}, {"timeout_s": 0}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    """At the start, by name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Loader(Augmented(), seed=0, observer=Observer(), **wrong)


def test_a_dataset_with_a_batched_read_is_still_read_one_by_one() -> None:
    """`__getitems__` would give all examples of a request one random stream."""

    class Batched(Augmented):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            raise AssertionError("not called")

    with loader(Batched(), num_workers=1) as made:
        made.open([request(1, 2)])
        assert made.next().batch[1].tolist() == [1, 2]


def test_the_folder_of_a_killed_worker_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """A week of kills must not fill /tmp; and a living worker's folder must not be taken for a dead one's."""
    program = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from elastic.data.scratch import Scratch\n"
        "scratch = Scratch(); print(scratch.folder, flush=True); sys.stdin.read(); scratch.close()\n"
    )

    def worker() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def folder_of(process: subprocess.Popen[str]) -> Path:
        assert process.stdout is not None
        return Path(process.stdout.readline().strip())

    with worker() as killed, worker() as living:
        abandoned, used = folder_of(killed), folder_of(living)
        killed.kill()
        killed.wait(timeout=30)
        assert abandoned.exists()
        os.utime(abandoned, (0, 0))  # an hour later, say: a folder that was made just now is left alone
        with worker() as newcomer:
            own = folder_of(newcomer)
            assert sorted(tmp_path.iterdir()) == sorted([used, own])
            newcomer.communicate(timeout=30)
        living.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_a_long_tmpdir_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch system's is as long as the job's name. The kernel takes no socket's path of 108 bytes, and a child that
    could not make its own would die without a word."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with loader(Asked(lambda i: torch.full((1000,), i)), num_workers=2) as made:
        made.open(consecutive(20))
        assert [int(loaded.batch[0, 0]) for loaded in read_all(made)] == list(range(0, 60, 3))
        assert len(list(deep.iterdir())) == 1
    assert list(deep.iterdir()) == []

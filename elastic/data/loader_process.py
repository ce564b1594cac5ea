"""Loader processes: forked children that read ahead, and outlive neither their worker nor its patience.

Promises  a child is gone when its worker is, however the worker ends: it is killed by the kernel when the
          worker dies (Linux), and by `end` or at the interpreter's exit if it does not go by itself.
          A child holds no connection of its worker: a forked copy of a gloo socket would keep the peers
          of a killed worker waiting, because the kernel resets nothing while one copy is open (three gloo
          workers, one killed: the others' all-reduce failed after 5.0 s, and so after 0.07 s; 2026-11-21).
          A signal to the whole process group or cgroup, such as Ctrl-C or a scheduler's SIGTERM, does not end
          the children before their worker has finished the step and left.
          They live until `end`, however many sequences of requests they are given; or until a result cannot be
          handed over, by a pickle or for want of a thread or descriptor: it would be waited for in vain.
Leaves    what is read, and in which order results are wanted, to loader.py and ahead.py; one thread per child to
          DataLoader, which sets it before `ChildSetup` runs.
"""

from __future__ import annotations

import mmap
import multiprocessing
import multiprocessing.queues
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from elastic.data.scratch import Scratch
from elastic.errors import ElasticError
from elastic.membership.signal_pipe import is_taken
from elastic_checkpoint import linux

GRACE_S = 1.0  # a child that is still inside dataset[i] after this is killed: nobody wants its answer any more
POLL_S = 0.05  # how late a child's death is noticed, and that nobody wants to wait any more
READ_AHEAD = 2  # requests per child: one in work, and one for when that is done
DYING_S = 1.0  # between a process's connections, which the kernel closes first, and its end
JOIN_S = 5.0  # the kernel needs far less to end a killed process
UNSENT = 74  # exit code of one that could not hand over a result: EX_IOERR of sysexits.h

# A ticket that is abandoned is noted in its slot; if a later one takes the slot, the earlier is read to its end.
_SLOTS = 4096
_MEANS = {UNSENT: ": what it had read could not be handed over, as it says above"}
_LEAVE_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


Reader = Callable[[Any, Callable[[], bool]], Any]


class LoaderProcesses:
    """`num_workers` forked children that read the requests that are submitted.

    reader  called with a request, and with a function that tells whether it is abandoned and may end without a
            result. Inherited, not pickled; what it returns is pickled, its tensors go through shared memory
    Every exception but those that are named leaves it in doubt which results are still to come: `end` it.
    """

    def __init__(self, reader: Reader, *, num_workers: int, pin_memory: bool) -> None:
        self._processes: list[multiprocessing.Process] = []
        scratch = Scratch()
        self._at_exit = multiprocessing.util.Finalize(self, _end, args=(self._processes, scratch), exitpriority=100)
        self._outbox = _Outbox()
        self._abandoned = memoryview(mmap.mmap(-1, 8 * _SLOTS)).cast("q")  # shared with the children
        ticketed: Any = _TicketedReader(
            reader, self._abandoned
        )  # a data set to DataLoader, by what it can do and not by its type
        loader: DataLoader[Any] = DataLoader(
            ticketed,
            batch_size=None,  # a request is read as a whole, so DataLoader has nothing to collate
            sampler=self._outbox,
            collate_fn=_unchanged,
            num_workers=num_workers,
            prefetch_factor=READ_AHEAD,
            in_order=False,  # a result that nobody wants any more must not hold up the others
            pin_memory=pin_memory,
            timeout=POLL_S,
            generator=torch.Generator(),  # DataLoader draws a seed; it must not come from the run's own stream
            worker_init_fn=ChildSetup(),
            multiprocessing_context="fork",
        )
        # A child that has not come to `ChildSetup` would leave at a signal, or do what its worker does at one.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVE_SIGNALS)
        try:
            with scratch.for_children():
                results: Any = iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        self._results = results
        self._processes.extend(results._workers)
        scratch.note(process.pid for process in self._processes if process.pid is not None)
        leave_deaths_to_the_waits(results)

    def submit(self, ticket: int, request: Any) -> None:
        """Have a request read. At most READ_AHEAD * num_workers may be without a result. Tickets count up from 1."""
        self._outbox.append((ticket, request))
        # DataLoader calls this itself after each result; a new sequence begins when there is none to wait for.
        self._results._try_put_index()

    def abandon(self, tickets: Iterable[int]) -> None:
        """Have the reader told that these are abandoned. What it returns arrives all the same."""
        for ticket in tickets:
            self._abandoned[ticket % _SLOTS] = ticket

    def poll(self) -> tuple[int, Any] | None:
        """Return a ticket and its result, in any order, as soon as there is one; None after POLL_S.

        Something must be submitted that has no result yet. Raises ChildProcessError if a child is dead.
        """
        try:
            with ended_by_deaths(self._results, self._processes):
                answer: tuple[int, Any] | None = next(self._results, None)
        except Exception as error:  # DataLoader raises nothing narrower, and half a message breaks in any way
            over = str(error).startswith("DataLoader timed out")
            if dead := deaths(self._processes, within_s=0 if over or isinstance(error, ElasticError) else DYING_S):
                raise ChildProcessError(dead) from error
            if not over:
                raise
            return None
        assert answer is not None, "poll was called with nothing submitted"
        return answer

    def alive(self) -> bool:
        """Tell whether all children live."""
        return not deaths(self._processes)

    def end(self) -> None:
        """Let the children finish the request in hand, for GRACE_S at most; on return they are gone."""
        impatience = threading.Timer(GRACE_S, _kill, args=(self._processes,), kwargs={"wait": False})
        impatience.daemon = True
        impatience.start()
        try:
            self._results._shutdown_workers()
        finally:
            impatience.cancel()
            impatience.join()
            self._at_exit()


def leave_deaths_to_the_waits(iterator: Any) -> None:
    """Keep DataLoader's SIGCHLD handler from an iterator's processes; `ended_by_deaths` sees their deaths."""
    signal_handling._remove_worker_pids(id(iterator))
    # The handler would throw a dead child's RuntimeError into whatever line this process is at, an optimizer's step
    # included.
    iterator._worker_pids_set = False


def deaths(processes: Sequence[Any], *, within_s: float = 0) -> str:
    """Return in words which processes are dead, or are so within `within_s`; "" where all live."""
    until_s = time.monotonic() + within_s
    while not (dead := [one for one in processes if not one.is_alive()]) and time.monotonic() < until_s:
        time.sleep(0.01)
    ends = ", ".join(f"pid {one.pid}, exit code {one.exitcode}{_MEANS.get(one.exitcode, '')}" for one in dead)
    return f"{len(dead)} of {len(processes)} died ({ends})" if dead else ""


@contextmanager
def ended_by_deaths(iterator: Any, processes: Sequence[Any]) -> Iterator[None]:
    """Guard a wait for what DataLoader's processes send: raise where one of them is dead, or dies meanwhile.

    One that is killed in the midst of a message leaves half of it, and a read of that never ends: other processes
    hold the pipe open. DataLoader's handler of SIGCHLD raises a RuntimeError out of the read, in the main thread.
    """
    signal_handling._set_worker_pids(id(iterator), tuple(one.pid for one in processes))
    try:
        if dead := deaths(processes):
            raise ChildProcessError(dead)
        yield
    finally:
        signal_handling._remove_worker_pids(id(iterator))


class _TicketedReader:
    """A reader whose results say which request they belong to."""

    def __init__(self, reader: Reader, abandoned: memoryview[int]) -> None:
        self.reader = reader
        self.abandoned = abandoned

    def __getitem__(self, submitted: tuple[int, Any]) -> tuple[int, Any]:
        ticket, request = submitted
        return ticket, self.reader(request, lambda: self.abandoned[ticket % _SLOTS] == ticket)


class _Outbox(deque[tuple[int, Any]]):
    """Requests for DataLoader to submit: an iterator, as its sampler must be, and one that can go on after its end."""

    def __iter__(self) -> _Outbox:
        return self

    def __next__(self) -> tuple[int, Any]:
        if not self:
            raise StopIteration
        return self.popleft()


class ChildSetup:
    """The first thing that a loader process does. Made in the worker, called in the child.

    The kernel's death signal is tied to the *thread* that forks: start loader processes from a thread that
    lives as long as they should.
    """

    def __init__(self) -> None:
        self.parent = os.getpid()

    def __call__(self, worker_id: int) -> None:
        die_with_parent(self.parent)
        signal.set_wakeup_fd(-1)  # the worker's own pipe: a signal here is no news there
        for number in _LEAVE_SIGNALS:
            if number is signal.SIGUSR1 and is_taken(number):
                continue  # by the script, for something of its own
            signal.signal(number, _stay)  # unlike SIG_IGN not inherited by a decoder that the dataset starts
            signal.siginterrupt(number, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEAVE_SIGNALS)
        # A copy of a gloo socket would keep a killed worker's peers waiting: 5.0 s, and so 0.07 s (2026-11-21).
        hang_up_inherited_connections()
        end_where_unsent()


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; exit at once if it is dead already."""
    linux.signal_at_parents_end(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hang_up_inherited_connections() -> None:
    """Replace every inherited internet socket, listening ones included, by one whose other end has hung up.

    Replaced and not closed: whoever still refers to the number (a store client, an HTTP pool in the dataset) then
    reads an end of file and reconnects, where a closed number could be given to another file.
    """
    here, there = socket.socketpair()
    there.close()
    with here:
        for name in os.listdir("/dev/fd"):
            number = int(name)
            try:
                known = socket.socket(fileno=number)
            except OSError:
                continue  # a file or a pipe, or the listing's own descriptor
            if known.family in (socket.AF_INET, socket.AF_INET6):
                os.dup2(here.fileno(), number, inheritable=False)
            known.detach()


class WorkerInit:
    """A loader process's `worker_init_fn`: `end_where_unsent`, and then its own."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        end_where_unsent()
        if self._then is not None:
            self._then(worker_id)


def end_where_unsent() -> None:
    """End this process, from here on, where it cannot hand over a result, instead of dropping it with a word."""
    setattr(multiprocessing.queues.Queue, "_on_queue_feeder_error", staticmethod(_end_unsent))  # noqa: B010 no stub has it


def _end_unsent(error: Exception, _result: Any) -> None:
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(UNSENT)


def _stay(signum: int, frame: FrameType | None) -> None:
    """Do nothing: the worker hears of the signal as well, and ends us when it leaves."""


def _end(processes: list[multiprocessing.Process], scratch: Scratch) -> None:
    _kill(processes)
    scratch.close()


def _kill(processes: list[multiprocessing.Process], wait: bool = True) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes if wait else ():
        process.join(JOIN_S)


def _unchanged(result: Any) -> Any:
    return result

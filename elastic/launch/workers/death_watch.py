"""Hears of a worker's death before the kernel has taken its memory apart, which survivors would wait for.

    each worker's main thread holds a mutex (robust_mutex.py)  ->  it is killed, or crashes  ->  a thread here has the
      mutex, /proc has the status  ->  the loop is told  ->  (tens of ms)  ->  its connections close, SIGCHLD

A process that has loaded torch has some 100,000 pages. Its survivors form their next view meanwhile; a worker in its
slot starts when it is gone, for a GPU's memory is free only then.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Collection, Sequence

from elastic.launch.processes import children
from elastic.launch.processes.robust_mutex import RobustMutex

_JOIN_S = 1.0  # all whose ends were waited for have ended


class DeathWatch:
    """Waits for each worker's death in a thread; died: called in the loop, with what `watch` was given."""

    def __init__(self, loop: selectors.BaseSelector, died: Callable[[str], None]) -> None:
        self._loop = loop
        self._died = died
        self._dead: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open = threading.Lock()  # guards the descriptor
        self._wake: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.register(self._wake, selectors.EVENT_READ, self._hear)

    def watch(self, token: str, mutex: RobustMutex | None) -> None:
        """Wait for the worker's death; where nobody holds the mutex do nothing, as SIGCHLD tells of the death then."""
        if mutex is None or not mutex.is_held:
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._wait, args=(token, mutex), name="elastic-death-watch", daemon=True)
        with contextlib.suppress(RuntimeError):  # there is no room for another thread
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Tell of no more deaths; to be called once those that were watched have ended."""
        with self._open:
            wake, self._wake = self._wake, None
        if wake is not None:
            self._loop.unregister(wake)
            os.close(wake)
        deadline_s = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _wait(self, token: str, mutex: RobustMutex) -> None:
        mutex.wait()
        self._dead.put(token)
        with self._open:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def _hear(self) -> None:
        assert self._wake is not None
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._dead.empty():
            self._died(self._dead.get())


class Dying:
    """Workers that count as ended, and whose processes are not gone yet, by local rank.

    replica_size  so many slots, one after the other, get their next workers together
    """

    def __init__(self, replica_size: int = 1) -> None:
        self._replica_size = replica_size
        self._pids: dict[int, int] = {}
        self.awaited: set[int] = set()
        """Slots in which the next workers are to start."""

    @property
    def pids(self) -> Collection[int]:
        return self._pids.values()

    def begins(self, local_rank: int, pid: int) -> None:
        """Take a worker whose end has begun."""
        self._pids[local_rank] = pid

    def is_to_wait(self, slots: Sequence[int]) -> bool:
        """Return whether the next workers in a replica's slots wait, until `reap` gives them back."""
        waits = any(slot in self._pids for slot in slots)
        if waits:
            self.awaited.update(slots)
        return waits

    def take_awaited(self) -> set[int]:
        """Return the slots that are waited for, where nothing is to start any more."""
        taken, self.awaited = self.awaited, set()
        return taken

    def reap(self) -> list[int]:
        """Reap the processes that are gone now; return the first slot of each replica that has waited for that."""
        gone = [local_rank for local_rank, pid in self._pids.items() if children.ended(pid) is not None]
        for local_rank in gone:
            pid = self._pids.pop(local_rank)
            children.kill_group(pid)  # its children: its group keeps its number until it is reaped
            children.reap(pid)
        taken = {local_rank // self._replica_size for local_rank in self._pids}
        free = [local_rank for local_rank in self.awaited if local_rank // self._replica_size not in taken]
        self.awaited.difference_update(free)
        return [local_rank for local_rank in free if local_rank % self._replica_size == 0]

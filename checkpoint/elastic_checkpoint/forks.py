"""What a forked child must not keep, and what it must not end.

Its parent's sockets and memory files are closed in it at once. A data loader's worker outlives the process that it
belongs to for a while: a connection or a port that it held open would pass for that process, and memory that was given
back would not be free.

The garbage of a parent that was ever in a process group is not collected in it. What ends a thread waits for one that a
fork does not copy: the last word to a broken gloo group, found by a loader process's collector, joined such a thread
and was a SIGSEGV (torch 2.13, 2026-11-27). From before a fork until all that is there is frozen, nothing is collected.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Protocol


class OfOneProcess(Protocol):
    def close_in_child(self) -> None:
        """Close descriptors, and nothing else: threads and processes are the parent's."""


_open: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()


def close_in_children(one: OfOneProcess) -> None:
    """Close this one in every child that is forked from now on."""
    _open.add(one)


def forget(one: OfOneProcess) -> None:
    """Close it in children no more, since it is closed here."""
    _open.discard(one)


def _close_all_in_child() -> None:
    for one in list(_open):
        one.close_in_child()
    _open.clear()


class _Collector:
    """Of this process's garbage, around its forks.

    in_child  whether what a child inherits is frozen in it
    """

    def __init__(self) -> None:
        self.in_child = False
        self._lock = threading.RLock()  # a signal's handler may fork, too
        self._forks = 0  # under way, in several threads
        self._goes_on = False

    def hold(self) -> None:
        with self._lock:
            self._forks += 1
            if self._forks == 1:
                self._goes_on = gc.isenabled()
                gc.disable()

    def go_on(self) -> None:
        with self._lock:
            self._forks -= 1
            if self._forks == 0 and self._goes_on:
                gc.enable()

    def go_on_in_child(self) -> None:
        self._lock, self._forks = threading.RLock(), 0  # another thread may have held it
        if self.in_child:
            gc.freeze()
        if self._goes_on:
            gc.enable()


_collector = _Collector()


def leave_garbage_to_parents() -> None:
    """Freeze what a child inherits, in every child that is forked from now on."""
    _collector.in_child = True


os.register_at_fork(after_in_child=_close_all_in_child)
os.register_at_fork(before=_collector.hold, after_in_parent=_collector.go_on, after_in_child=_collector.go_on_in_child)

"""What a forked child must not keep, and what it must not end.

Its parent's sockets and memory files are closed in it at once. A data loader's worker outlives the process that it
belongs to for a while: a connection or a port that it held open would pass for that process, and memory that was given
back would not be free.

Its parent's garbage is never collected in it. What ends a thread waits for one that a fork does not copy: the last
word to a broken gloo group, found by a loader process's collector, joined such a thread and was a SIGSEGV (torch 2.13,
2026-11-27). From before the fork until all that is there is frozen, nothing is collected.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Protocol


class OfOneProcess(Protocol):
    def close_in_child(self) -> None:
        """Closes descriptors, and nothing else: threads and processes are the parent's."""


_open: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()


def close_in_children(one: OfOneProcess) -> None:
    """From now on, in every child that is forked."""
    _open.add(one)


def forget(one: OfOneProcess) -> None:
    """It is closed."""
    _open.discard(one)


def _close_all_in_child() -> None:
    for one in list(_open):
        one.close_in_child()
    _open.clear()


class _Collector(threading.local):
    """Whether it is to go on after a fork: threads may fork at once."""

    goes_on = False


_collector = _Collector()


def _hold_collector() -> None:
    _collector.goes_on = gc.isenabled()
    gc.disable()


def _let_collector_go_on() -> None:
    if _collector.goes_on:
        gc.enable()


def _leave_garbage_in_child() -> None:
    gc.freeze()
    _let_collector_go_on()


os.register_at_fork(after_in_child=_close_all_in_child)
os.register_at_fork(
    before=_hold_collector, after_in_parent=_let_collector_go_on, after_in_child=_leave_garbage_in_child
)

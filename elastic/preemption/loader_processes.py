"""Processes of torch's DataLoader stay while the process that they read for has been told to leave, and not left yet.

Launchers and schedulers send a signal to all that a job has started: torchrun to its workers' process groups, Slurm to
every process of a step. A loader process would end at it, and the loop with an error before it could save.

Promises  between `keep` and `let_go` one that is forked does nothing at these signals. None outlives the process that
          forked it: torch's own watch in each looks for it every few seconds, and at the interpreter's exit, where
          multiprocessing would send SIGTERM and wait for their end, they are killed.
Leaves    those of an elastic.Run to data/loader_process.py, and those that are spawned or were there before to torch.

What a DataLoader does first in a process, and once it has started some, is private to torch: the names that it looks
up in `signal_handling`, and torchdata's StatefulDataLoader as well. Checked against torch 2.13 and torchdata 0.11.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import multiprocessing.util
import signal
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from weakref import WeakSet

from torch.utils.data._utils import signal_handling

_kept: list[Sequence[signal.Signals]] = []  # of each `keep` whose `let_go` is to come
_keys: set[int] = set()  # torch's, of the iterators whose processes were forked meanwhile
_processes: WeakSet[multiprocessing.process.BaseProcess] = WeakSet()  # a number may be another one's by the end
_as_torch_begins_one = signal_handling._set_worker_signal_handlers
_as_torch_notes_them = signal_handling._set_worker_pids


def keep(numbers: Sequence[signal.Signals]) -> None:
    """At these signals, all that are forked from now on."""
    if not _kept:
        signal_handling._set_worker_signal_handlers = _begin
        signal_handling._set_worker_pids = _note
    _kept.append(numbers)


def let_go(numbers: Sequence[signal.Signals]) -> None:
    """The same object as `keep` had. What was forked until now stays until its DataLoader ends it."""
    _kept.remove(numbers)
    if not _kept:
        signal_handling._set_worker_signal_handlers = _as_torch_begins_one
        signal_handling._set_worker_pids = _as_torch_notes_them


def _begin() -> None:
    """In the child."""
    _as_torch_begins_one()
    for numbers in _kept:
        for number in numbers:
            signal.signal(number, _stay)  # unlike SIG_IGN not inherited by a decoder that the data set starts
            signal.siginterrupt(number, False)


def _note(key: int, child_pids: tuple[int, ...]) -> None:
    if not _keys:
        multiprocessing.util.Finalize(None, _kill_those_left, exitpriority=100)
    _keys.add(key)
    _processes.update(process for process in multiprocessing.active_children() if process.pid in child_pids)
    _as_torch_notes_them(key, child_pids)


def _kill_those_left() -> None:
    """At the interpreter's exit, in the process that forked them."""
    for key in _keys:
        with suppress(ValueError):  # its DataLoader has ended them
            signal_handling._remove_worker_pids(key)  # or it would raise an error for each that is killed
    for process in list(_processes):
        if process.is_alive():
            process.kill()


def _stay(_number: int, _frame: FrameType | None) -> None:
    """The process that reads hears it as well."""

"""Calls a function in a forked copy of this process, so that what it changes is changed nowhere else.

Promises  attributes, globals, random generators and what compiled code keeps are the copy's own; files that are open to
          be read stand afterwards where they stood. The copy is gone on return, and dies with this process.
Leaves    what has no copy: who reads from a pipe there takes it from here.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from elastic.data.loader_process import JOIN_S, ChildSetup
from elastic.errors import LoaderError

_T = TypeVar("_T")


def in_a_fork(function: Callable[[], _T], *, within_s: float) -> _T:
    """Return what `function` returns in a copy of this process; it must be picklable. Raises what `function` raises.

    Raises LoaderError if the copy dies, or gives nothing in time.
    """
    places = _places_in_files()
    here, there = multiprocessing.Pipe(duplex=False)
    copy = multiprocessing.get_context("fork").Process(target=_call, args=(function, there, ChildSetup()))
    copy.start()
    there.close()
    try:
        with here:
            if not here.poll(within_s):  # it waits for a lock, say, that a thread held here which is not there
                raise LoaderError(
                    f"the process in which loaders are read gave nothing for {within_s:g} s\n"
                    "  state  nothing is changed\n"
                    "  next   a larger timeout_s=, if the loaders are slow; or call it before other threads are busy"
                )
            found, error, trace = here.recv()
        copy.join(JOIN_S)  # loader processes of its own end with it
    except EOFError:
        copy.join(JOIN_S)
        raise LoaderError(
            f"the process in which loaders are read died: exit code {copy.exitcode}\n"
            "  state  nothing is changed\n  next   see what it said above; if it was killed, dmesg says why"
        ) from None
    finally:
        copy.kill()
        copy.join()
        for descriptor, place in places:
            os.lseek(descriptor, place, os.SEEK_SET)
    if error is not None:
        raise error from RuntimeError(f"in the process in which loaders are read:\n{trace}")
    result: _T = found
    return result


def _call(function: Callable[[], object], there: Connection, set_up: ChildSetup) -> None:
    """Send (what `function` returned, what it raised, where)."""
    set_up(0)
    torch.set_num_threads(1)  # the others were not forked, and would be waited for
    try:
        there.send((function(), None, ""))
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301  our own; many can be pickled, and not made again
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        there.send((None, error, trace))


def _places_in_files() -> list[tuple[int, int]]:
    """Return where files that are open only to be read stand: a fork has that in common with its parent."""
    places = []
    for name in os.listdir("/dev/fd"):
        try:
            if fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                places.append((int(name), os.lseek(int(name), 0, os.SEEK_CUR)))
        except OSError:
            continue  # a pipe, or the listing's own descriptor
    return places

"""The children of this process: how they ended, and an end to all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from elastic_checkpoint import linux
from elastic_checkpoint.save.writer import WRITER_MODULE

_POLL_S = 0.01
_WRITER = WRITER_MODULE.encode()
_REAPED_S = 10.0  # the kernel needs far less to end what it was told to kill


@dataclass(frozen=True)
class Ended:
    """How a child ended: the code of its exit, or the name of the signal."""

    code: int | None
    signal: str | None

    @property
    def text(self) -> str:
        return f"exit status {self.code}" if self.signal is None else self.signal


def ended(pid: int) -> Ended | None:
    """Return how that child ended, None while it lives; it stays a zombie, so its number cannot become another's."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return Ended(None, "of unknown cause")
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return Ended(found.si_status, None)
    return Ended(None, _name(found.si_status))


def ending(pid: int) -> Ended | None:
    """Return how a child ends whose end has begun, and may last a while; None: it lives, or nobody says."""
    status = linux.exit_status(pid)
    if status is None:
        return None
    return Ended(None, _name(os.WTERMSIG(status))) if os.WIFSIGNALED(status) else Ended(os.WEXITSTATUS(status), None)


def reap(pid: int) -> int:
    """Reap that child; return the most memory that it ever had, in bytes, 0 where nobody knows."""
    with contextlib.suppress(ChildProcessError):
        return os.wait4(pid, 0)[2].ru_maxrss * 1024
    return 0


def reap_orphans(known: Collection[int | None]) -> None:
    """Reap what dead workers left to us, loader processes say; those that are `known` are their keepers' to reap."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in known:
            return
        reap(found.si_pid)


def kill_group(leader: int) -> None:
    """Kill a process and its group."""
    for kill in (os.killpg, os.kill):  # a process that was just forked does not lead a group yet
        with contextlib.suppress(ProcessLookupError):
            kill(leader, signal.SIGKILL)


def finishing(dying: Collection[int]) -> list[int]:
    """Return writer processes of checkpoints, left to us by workers that died; each ends once its save is committed.

    dying  workers that have not left theirs to us yet
    """
    ours = linux.children(os.getpid(), *dying)
    return [pid for pid, stat in ours.items() if not stat.is_dead and _WRITER in linux.command_line(pid).split(b"\0")]


def end_all(*, within_s: float) -> None:
    """Send SIGTERM to every child, SIGKILL to those that are left; then again to what those leave to us."""
    asked: set[int] = set()
    kill_from_s = time.monotonic() + within_s
    deadline_s = kill_from_s + _REAPED_S
    while (remaining := linux.children(os.getpid())) and time.monotonic() < deadline_s:
        for pid, stat in remaining.items():
            if stat.is_dead:
                reap(pid)
            elif time.monotonic() >= kill_from_s:
                linux.send_signal(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                linux.send_signal(pid, signal.SIGTERM)
        time.sleep(_POLL_S)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

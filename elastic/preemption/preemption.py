"""Notices for a loop of one's own: plain DDP, a Trainer's callback. See `Preemption`."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from elastic.errors import ConfigError, RendezvousTimeout
from elastic.membership import environment
from elastic.membership.exit_statuses import AGAIN
from elastic.membership.worker.missing import ranks_named_by_torch
from elastic.preemption.notice import Notice
from elastic.preemption.process_notices import ProcessNotices
from elastic.preemption.setting import sources
from elastic.preemption.signals import LEAVE_SIGNALS, SignalNotices
from elastic.status.console import Console

_NAMING_S = 5.0  # for those who came to say so, once somebody did not


class Preemption:
    """Tells a loop that is not `elastic.Run`'s whether this process's machine is about to be taken, and by when.

        with elastic.Preemption() as preemption:
            for step, batch in enumerate(loader):
                train(batch)
                if preemption.agreed():  # on every rank, at the same step
                    save(step)
                    preemption.exit()

    Inside the with-block SIGTERM and SIGUSR1 end nothing: they are notices, as are those of the machine's cloud, of
    Slurm, of a file or a command. On each node the process of local rank 0 watches these. Ctrl-C stays Python's.
    Enter it in the main thread, elsewhere Python takes no signals, and before DataLoaders and pools begin: processes
    that are forked within it stay at a signal to everybody, as torchrun and Slurm send it.

    Args:
        notices: Which sources are watched, as for `elastic run --notices`. Default: ELASTIC_NOTICES, or "auto".
        timeout_s: The deadline of `agreed`, in seconds: how long other ranks may take to come to it.
        note: A file in which `exit` leaves one line, the reason. On each node the process of local rank 0 writes it,
            and removes one that is there when the with-block begins.

    Attributes:
        hinted: Whether, when `agreed` was last called, a rank's machine was said to be at risk since the call before:
            save soon, and stay.

    Raises:
        ConfigError: `notices` names no source, or the object was entered before.
    """

    def __init__(
        self, notices: str | None = None, *, timeout_s: float = 60.0, note: str | os.PathLike[str] | None = None
    ) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s!r}; expected a number of seconds above 0")
        setting = environment.notices() if notices is None else notices
        watched = sources(setting)
        self._speaks = environment.local_rank() == 0  # for its node
        self._note = _ExitFile(note) if note is not None and self._speaks else None
        self._timeout_s = timeout_s
        self._process = ProcessNotices(
            SignalNotices(LEAVE_SIGNALS, grace_s=environment.grace_s()),
            watched if self._speaks else [],
            say=Console(quiet=False).warn,
        )
        self._node = socket.gethostname()
        self._agreed: Notice | None = None
        self._group: dist.ProcessGroup | None = None
        self._entered = self._exits = False
        self.hinted = False

    @property
    def leaving(self) -> bool:
        """Tell whether this process was told to leave, or `agreed` said that another rank was. Asks nobody."""
        return self._notice is not None

    @property
    def deadline_s(self) -> float | None:
        """Return how many seconds are left, 0 at least; None: nobody says, or nobody leaves."""
        notice = self._notice
        return None if notice is None else notice.left_s(time.monotonic())

    @property
    def who(self) -> str | None:
        """Return the host that is taken, of several the first one; None: nobody leaves."""
        notice = self._notice
        return None if notice is None else notice.node or self._node

    @property
    def reason(self) -> str | None:
        """Return who says so, in words; None: nobody leaves."""
        notice = self._notice
        return None if notice is None else notice.why

    def agreed(self) -> bool:
        """Tell whether any rank was told to leave: the same answer on all ranks, which call it at the same place.

        Where torch.distributed is not initialised it is `leaving`. Else it is an all-reduce of two numbers over a gloo
        group of its own, whatever the training uses. Once it is True it stays so, without asking.

        Raises:
            RendezvousTimeout: Some rank did not come to it within `timeout_s`, or is gone; `missing` says which, as far
                as torch does.
        """
        if self._agreed is None:
            own, self.hinted = self._process.leave, self._take_hints()
            if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
                self._agreed = own
            else:
                self._ask_others(own)
        return self._agreed is not None

    def exit(self, status: int = AGAIN) -> NoReturn:
        """End this process, which leaves: what it held is saved, and the same command goes on from there.

        A line on standard error says why, and so does the `note`. Call it within the with-block, on every rank, instead
        of `break`, or after what has to be closed: outside it a signal that comes twice ends the process.

        Args:
            status: The exit status, by which a scheduler knows that the job is to be started again. Under `elastic run`
                it is 75, by which the workers of other nodes go on among themselves. Under torchrun it is 0, for
                torchrun makes 1 of any other, and may start its workers again: there the `note` tells.

        Raises:
            SystemExit: Always, if somebody leaves.
            ConfigError: Nobody was told to leave.
        """
        if self._notice is None:
            raise ConfigError(
                "Preemption.exit was called although no rank was told to leave: ask `leaving`, or `agreed()`, before"
            )
        if environment.read().placed:
            status = AGAIN  # `elastic run` starts those of other nodes again, among themselves
        elif environment.is_launchers_child():
            status = 0  # torchrun makes 1 of any other, and may start its workers again
        if self._speaks:
            reason = f"{self.who} leaves: {self.reason}"
            if self._note is not None:
                self._note.write(reason)
            Console(quiet=False).say(f"{reason}; the same command goes on (status {status})")
        self._exits = True
        raise SystemExit(status)

    def __enter__(self) -> Preemption:
        if self._entered:
            raise ConfigError("this Preemption was entered before; make a new one")
        self._entered = True
        if self._note is not None:
            self._note.remove()
        self._process.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close(gone=(error is None or self._exits) and self.leaving)
        if self._exits:
            with suppress(ValueError):  # outside the main thread
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes twice would give another status
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group(group)

    @property
    def _notice(self) -> Notice | None:
        return self._agreed or self._process.leave

    def _take_hints(self) -> bool:
        """Take all hints that came; tell whether there was one."""
        hinted = False
        while self._process.take_hint() is not None:
            hinted = True
        return hinted

    def _ask_others(self, own: Notice | None) -> None:
        """Set what all ranks agree on. Raises RendezvousTimeout."""
        try:
            if self._group is None:
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout_s))
            flags = torch.tensor([own is not None, self.hinted], dtype=torch.int32)
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
            self.hinted = bool(flags[1])
            if flags[0]:
                self._agreed = self._first_of_all(own)
        except RuntimeError as failure:
            self._group = None
            raise self._not_all(failure) from failure

    def _first_of_all(self, own: Notice | None) -> Notice:
        """Return the notice that leaves the least time, of those that any rank has."""
        now_s = time.monotonic()
        said = None if own is None else (own.left_s(now_s), own.why, own.node or self._node)
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, said, group=self._group)
        left_s, why, node = min(
            (one for one in gathered if one is not None), key=lambda one: (one[0] is None, one[0] or 0.0)
        )
        by_s = None if left_s is None else now_s + left_s
        return Notice(source="agreed", id="agreed", why=why, by_s=by_s, node=node)

    def _not_all(self, failure: RuntimeError) -> RendezvousTimeout:
        """Return the error which says who is missing."""
        missing = _missing()
        named = ", ".join(f"rank {rank}" for rank in missing) or f"not known; torch says: {failure}"
        return RendezvousTimeout(
            f"not all of {dist.get_world_size()} ranks came to Preemption.agreed within {self._timeout_s:g} s\n"
            f"  missing  {named}\n"
            "  state    nothing was agreed on; the model is as it was\n"
            "  next     call it on every rank at the same place; timeout_s= for ranks that are far apart",
            missing=missing,
        )


class _ExitFile:
    """A file of one line, which tells whoever starts jobs that a job has left before its end, and why."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def write(self, reason: str) -> None:
        """Write the reason as one line, which is there whole or not at all. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")  # every node may write, into one folder
        new.write_text(" ".join(reason.split()) + "\n")
        new.replace(self._path)

    def remove(self) -> None:
        """Remove the file of an earlier start. Raises OSError."""
        self._path.unlink(missing_ok=True)


def _missing() -> list[int]:
    """Return who does not come to say that it is here, of what torch's store tells of them: the first one."""
    try:
        dist.destroy_process_group(dist.new_group(backend="gloo", timeout=timedelta(seconds=_NAMING_S)))
    except RuntimeError as naming:
        return ranks_named_by_torch(str(naming))
    return []

"""The newest checkpoint is read while this node's processes start: by a child of the agent, for the coordinator.

    agent   forks the child as soon as the command is read, and tells it to begin once the run's hub is known to be here
    child   reads what lies at the run's URL into memory that has no name (elastic_checkpoint/load/read_ahead.py)
    worker  has that memory open from its beginning; the coordinator takes from it what is there, and the rest from
            storage

Promises  a run begins as it would without: the child says nothing, nobody waits for it, what it has read is verified.
          It ends with the agent, however that ends; when somebody here holds the state; or after 300 s. So does the
          memory, and no file is left.
Leaves    URL and credentials to the environment and the command: what only the script knows is not read ahead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NoReturn

from elastic.errors import ConfigError
from elastic.launch.processes import early_signals
from elastic.membership.environment import url_and_virtual_workers
from elastic.membership.progress import Record
from elastic_checkpoint import linux
from elastic_checkpoint.load.spool import Spool, new_spool

NAME = "elastic-ahead"  # as `top` shows it
_WITHIN_S = 300.0
_LOOK_S = 0.05
_NICE = 10  # imports come first


def known_url(endpoint: str, environ: Mapping[str, str]) -> str | None:
    """The run's, as --rdzv-endpoint or ELASTIC_URL names it; None: only the script knows."""
    if "/" in endpoint:
        from elastic.launch.rendezvous.store import rendezvous_endpoints

        with contextlib.suppress(ConfigError):  # which concerns several nodes alone
            if (url := rendezvous_endpoints(endpoint).url) is not None:
                return url
    return url_and_virtual_workers(environ)[0] or None


class ReadAhead:
    """On the agent. To be made while this process has one thread.

    descriptor  for workers; None: there is nothing, or nobody needs it any more
    taken       bytes of the state that the coordinator found there
    """

    def __init__(self, url: str | None) -> None:
        self.descriptor: int | None = None
        self.taken = 0
        self._wish = -1
        self._until_s = time.monotonic() + _WITHIN_S
        if url is not None:
            self.descriptor = new_spool()
            heard, self._wish = os.pipe()
            self._fork(url, self.descriptor, heard)
            os.close(heard)

    def _fork(self, url: str, descriptor: int, heard: int) -> None:
        agent = os.getpid()
        if early_signals.fork() == 0:
            _in_fork(url, descriptor, heard, agent)

    def begin(self) -> None:
        """Now is the time to read."""
        if self.descriptor is not None:
            self._until_s = time.monotonic() + _WITHIN_S
            with contextlib.suppress(BrokenPipeError):
                os.write(self._wish, b"!")

    def look(self, now_s: float, records: Iterable[Record]) -> None:
        """Where this node's workers are: the first that holds a state ends it."""
        if self.descriptor is not None and (now_s > self._until_s or any(record.holds_state for record in records)):
            self.close()

    def close(self) -> None:
        """The child ends at this. Idempotent."""
        if self.descriptor is not None:
            spool = Spool(self.descriptor)
            spool.end()
            self.taken = spool.taken
            os.close(self._wish)
            os.close(self.descriptor)
            self.descriptor = None


def _in_fork(url: str, descriptor: int, heard: int, agent: int) -> NoReturn:
    try:
        os.setsid()
        linux.name_process(NAME)
        linux.signal_at_parents_end(signal.SIGKILL)
        linux.keep_only(descriptor, heard)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.nice(_NICE)
        if os.getppid() == agent and os.read(heard, 1):
            _read(url, Spool(descriptor), heard)
    finally:
        os._exit(0)


def _read(url: str, spool: Spool, heard: int) -> None:
    """Until all is read, nobody needs more, or the agent has closed its end, though the storage hangs."""
    from elastic_checkpoint.load.read_ahead import read_ahead  # which loads fsspec

    reading = threading.Thread(target=read_ahead, args=(url, spool), name="elastic-read-ahead", daemon=True)
    reading.start()
    while reading.is_alive() and not spool.is_over and not select.select([heard], [], [], _LOOK_S)[0]:
        pass

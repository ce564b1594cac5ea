"""Turns "a worker in this slot" into a process: one that the fork server has forked ahead, or a fresh interpreter.

    the fork server (fork_server/process.py)  ->  a spare, forked while nothing else is going on  ->  a worker, at once

Promises  every worker is a child of this process, whoever forked it, leading a group of its own, with the descriptors
          that it was given and no others.
          A fork server that dies is replaced; one that cannot be forked from is not used, and the reason is said once.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from elastic.launch.fork_server.importing import RANK_VARIABLES, WORKER_VARIABLES
from elastic.launch.fork_server.messages import (
    FROM_FORK_SERVER,
    PACKET_MAX,
    BecomeWorker,
    Forked,
    Leaves,
    Ready,
    Unfit,
    packet,
    read,
)
from elastic.launch.fork_server.process import in_fork
from elastic.launch.processes import children, early_signals
from elastic.launch.processes.script import Script
from elastic.launch.processes.worker import AGENT, STREAMS
from elastic_checkpoint import linux
from elastic_checkpoint.net.codec import NotAMessage
from elastic_checkpoint.net.event_loop import EventLoop

_DEATHS_MAX = 3  # of fork servers that never got ready, in a row
_READY_S = 300.0  # for its imports; what takes longer is not waited for by workers
_FORK_S = 10.0  # takes it some 50 ms
_CALM_S = 1.0  # after a start, before the next spare is forked: a recovery wants the processors for itself
_ABSENT = (*RANK_VARIABLES, *WORKER_VARIABLES)


@dataclass(frozen=True)
class Request:
    """What a worker is started with; env: what differs from the node's; fds: by variable, or "stdout" and "stderr"."""

    token: str
    env: Mapping[str, str]
    fds: Mapping[str, int]


@dataclass(frozen=True)
class _Spare:
    """A forked process that waits at the other end of `requests`; pid: 0 until it is known."""

    requests: socket.socket
    pid: int = 0


class Starter:
    """Starts the workers of a node, and keeps its fork server and one spare.

    preloaded  this process has loaded torch as a worker would, and nothing else goes on in it yet: the first fork
               server is a fork of it
    started    called as started(token, pid) once per request, whose descriptors can be closed then
    ready      a worker can be started at once, or nothing can be done ahead
    imported_s when the first fork server had made the script's imports, by time.monotonic()
    """

    started: Callable[[str, int], None]

    def __init__(
        self,
        loop: EventLoop,
        script: Script,
        environ: Mapping[str, str],
        *,
        fresh: bool,
        preloaded: bool,
        say: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self._script = script
        self._env = {**node_environment(environ), AGENT: str(os.getpid())}
        self._fresh = fresh
        self._say = say
        self._waiting: list[Request] = []
        self._server: int | None = None  # its pid
        self._socket: socket.socket | None = None  # to the fork server
        self._ready = False
        self.imported_s: float | None = None
        self._deaths = 0
        self._spare: _Spare | None = None
        self._asked_s = 0.0  # the fork server: for its imports, then for a spare
        self._refill_s = 0.0
        linux.adopt_orphans()
        if not fresh:
            self._warm_up(forked=preloaded)

    @property
    def ready(self) -> bool:
        """Return whether a worker can be started at once, or nothing can be done ahead."""
        return self._fresh or (self._spare is not None and self._spare.pid > 0)

    @property
    def forking(self) -> bool:
        """Return whether a child may exist whose number is not known yet."""
        return self._spare is not None and not self._spare.pid

    def pids(self) -> set[int]:
        """Return the children that are no workers."""
        return {pid for pid in (self._server, self._spare and self._spare.pid) if pid}

    def start(self, request: Request) -> None:
        """Start a worker, now or as soon as there is a spare."""
        self._waiting.append(request)
        self._go_on()

    def cancel(self, which: Collection[str] | None = None) -> list[str]:
        """Forget the requests that are no processes yet; return their tokens. which: of these alone."""
        waiting = [request.token for request in self._waiting if which is None or request.token in which]
        self._waiting = [request for request in self._waiting if request.token not in waiting]
        return waiting

    def tick(self, now_s: float) -> None:
        """Kill a fork server that does not fork, so that `reap` does the rest; else ask for a spare when it is due."""
        waited_s = now_s - self._asked_s
        if not self._fresh and not self._ready and waited_s > _READY_S:
            self._give_up(f"the script's imports took more than {_READY_S:.0f} s in the fork server")
        elif self.forking and waited_s > _FORK_S:
            self._kill_server()
        elif now_s >= self._refill_s:
            self._ask_for_spare()

    def reap(self) -> None:
        """Reap the fork server and the spare, if they are dead; another fork server takes its place."""
        if self._spare is not None and self._spare.pid and children.ended(self._spare.pid) is not None:
            children.reap(self._spare.pid)
            self._drop_spare()
        if (pid := self._server) is None or (ended := children.ended(pid)) is None:
            return
        self._hear()  # what it said before
        was_ready = self._ready
        children.reap(pid)
        self._server = None
        self._close_socket()
        if self._spare is not None and not self._spare.pid:
            self._drop_spare()  # it ends by itself, if it was forked
        if self._fresh:
            return
        self._deaths = 0 if was_ready else self._deaths + 1
        if self._deaths >= _DEATHS_MAX:
            self._give_up(f"the fork server ended {self._deaths} times while it imported ({ended.text})")
        else:
            self._say(f"the fork server {pid} ended ({ended.text}); another one takes its place, workers go on")
            self._warm_up()

    def close(self) -> None:
        """End the fork server and the spare; to wait for them is the caller's, who waits for all children."""
        self._fresh = True
        self._kill_server()
        self._close_socket()
        self._drop_spare()

    def _go_on(self) -> None:
        """Make processes of the requests that wait, as far as that can be done now."""
        while self._waiting:
            if self._spare is not None and self._spare.pid:
                self._use(self._spare, self._waiting.pop(0))
            elif self._fresh:
                self._spawn(self._waiting.pop(0))
            else:
                self._ask_for_spare()
                return

    def _warm_up(self, *, forked: bool = False) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._server = self._fork_from_here(its) if forked else self._spawn_server(its)
        ours.setblocking(False)
        self._socket, self._asked_s = ours, time.monotonic()
        self.loop.register(ours, selectors.EVENT_READ, self._hear)

    def _fork_from_here(self, its: socket.socket) -> int:
        """Fork the fork server from this one, and return its pid."""
        sys.stdout.flush()  # or what is buffered would be printed by both
        sys.stderr.flush()
        pid = early_signals.fork()
        if pid == 0:
            self.loop.close()
            in_fork(its, self._env, self._script.command())
        return pid

    def _spawn_server(self, its: socket.socket) -> int:
        """Start the fork server as a fresh interpreter, and return its pid."""
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "elastic.launch.fork_server.process",
                str(its.fileno()),
                "-1",
                *self._script.command(),
            ],
            env=self._env,
            stdin=subprocess.DEVNULL,
            pass_fds=(its.fileno(),),
            **linux.leading_group(),
        )
        process.returncode = 0  # this process waits for its children itself
        return process.pid

    def _hear(self) -> None:
        """Act on what the fork server says."""
        while self._socket is not None:
            try:
                data = self._socket.recv(PACKET_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_socket()  # its death is on its way
                return
            try:
                said = read(FROM_FORK_SERVER, data)
            except NotAMessage as wrong:
                self._give_up(f"the fork server said what is no message: {wrong}")
                return
            match said:
                case Leaves(why=why):
                    self._say(why)
                case Unfit(why=why):
                    self._give_up(why)
                case Ready():
                    self._ready, self._deaths = True, 0
                    self.imported_s = self.imported_s or time.monotonic()
                    self._ask_for_spare()
                case Forked(pid=pid):
                    assert self._spare is not None
                    self._spare = _Spare(self._spare.requests, pid)
                    self._go_on()

    def _ask_for_spare(self) -> None:
        """Have the fork server fork a spare, unless there is one."""
        if self._fresh or not self._ready or self._spare is not None:
            return
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._spare, self._asked_s = _Spare(ours), time.monotonic()
        with its, contextlib.suppress(OSError):  # its death is on its way
            assert self._socket is not None
            socket.send_fds(self._socket, [b"fork"], [its.fileno()])

    def _use(self, spare: _Spare, request: Request) -> None:
        """Make the spare a worker; if it is dead, or dies before it has read, it is a worker that died."""
        self._spare, self._refill_s = None, time.monotonic() + _CALM_S
        said = BecomeWorker(env=dict(request.env), fds=list(request.fds))
        with spare.requests, contextlib.suppress(OSError):
            socket.send_fds(spare.requests, [packet(said)], list(request.fds.values()))
        self.started(request.token, spare.pid)

    def _spawn(self, request: Request) -> None:
        """Start a worker as a fresh interpreter."""
        fds = {name: fd for name, fd in request.fds.items() if name not in STREAMS}
        process = subprocess.Popen(
            [sys.executable, "-m", "elastic.launch.processes.worker", *self._script.command()],
            env={**self._env, **request.env, **{name: str(fd) for name, fd in fds.items()}},
            stdin=subprocess.DEVNULL,
            stdout=request.fds.get("stdout"),
            stderr=request.fds.get("stderr"),
            pass_fds=tuple(fds.values()),
            **linux.leading_group(),
        )
        process.returncode = 0  # the agent waits for its workers itself
        self.started(request.token, process.pid)

    def _give_up(self, why: str) -> None:
        """Use no fork server any more."""
        self._say(f"each worker starts as a fresh interpreter, which takes longer: {why}")
        self._fresh = True
        self._kill_server()
        self._go_on()

    def _kill_server(self) -> None:
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._server, signal.SIGKILL)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.requests.close()  # a spare that lives ends at this
            self._spare = None

    def _close_socket(self) -> None:
        self._ready = False
        if self._socket is not None:
            self.loop.unregister(self._socket)
            self._socket.close()
            self._socket = None


def node_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a node's workers have in common: no rank, which is a place in a view, and no outer launcher's."""
    env = {name: value for name, value in environ.items() if name not in _ABSENT and "TORCHELASTIC_" not in name}
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # torchrun's default, too; a run's own groups set theirs
    return env

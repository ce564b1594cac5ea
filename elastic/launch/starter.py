"""Turns "a worker in this place" into a process: a fork of the warm process, or a fresh interpreter.

Promises  every worker is a child of this process, whoever forked it, in a session of its own, with the descriptors
          that it was given and no others. A warm process that dies is replaced; requests that it took with it are
          handed back. One that cannot be forked from is not used, and the reason is told once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastic.launch.script import Script
from elastic.launch.warm import MESSAGE_MAX, RANK_VARIABLES
from elastic.launch.worker import AGENT

_PR_SET_CHILD_SUBREAPER = 36
_DEATHS_MAX = 3  # of warm processes that never got ready, in a row
_WARM_S = 300.0  # for its imports; what takes longer is not waited for by workers
_ANSWER_S = 10.0  # to fork takes it some ten milliseconds
_ABSENT = ("RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", *RANK_VARIABLES)


@dataclass(frozen=True)
class Request:
    """env  what differs from the node's environment   fds  by variable, or "stdout" and "stderr" """

    token: str
    env: Mapping[str, str]
    fds: Mapping[str, int]


class Starter:
    """started(token, pid) is called once per request, or lost(token) if its warm process died first."""

    def __init__(
        self,
        loop: selectors.BaseSelector,
        script: Script,
        environ: Mapping[str, str],
        *,
        fresh: bool,
        started: Callable[[str, int], None],
        lost: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._script = script
        self._env = {**node_environment(environ), AGENT: str(os.getpid())}
        self._fresh = fresh
        self._started = started
        self._lost = lost
        self._say = say
        self._ready = False
        self._deaths = 0
        self._since_s = 0.0
        self._waiting: list[Request] = []
        self._asked: Request | None = None  # of the warm process, which takes one at a time
        self._asked_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if not fresh:
            self._warm_up()

    @property
    def warm_pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, request: Request) -> None:
        """The descriptors stay open until the answer, and are then the caller's to close."""
        self._waiting.append(request)
        self._go_on()

    def tick(self, now_s: float) -> None:
        """A warm process that does not answer is killed, and `died` does the rest."""
        if self._asked is not None and now_s - self._asked_s > _ANSWER_S:
            self._kill()
        elif not self._fresh and not self._ready and now_s - self._since_s > _WARM_S:
            self._give_up(f"the script's imports took more than {_WARM_S:.0f} s in the warm process")

    @property
    def asked(self) -> bool:
        """Whether a worker may exist that `started` has not told of."""
        return self._asked is not None

    def died(self, status: str) -> None:
        """The warm process did, and is reaped. Another one takes its place."""
        pid = self.warm_pid
        self._hear()  # what it said before
        was_ready = self._ready
        self._forget()
        if self._fresh:
            return
        self._deaths = 0 if was_ready else self._deaths + 1
        if self._deaths >= _DEATHS_MAX:
            self._give_up(f"the warm process ended {self._deaths} times while it imported ({status})")
        else:
            self._say(f"the warm process {pid} ended ({status}); another one takes its place, workers go on")
            self._warm_up()
        asked, self._asked = self._asked, None
        if asked is not None:
            self._lost(asked.token)

    def cancel(self) -> list[str]:
        """Forgets the requests that are no processes yet; returns their tokens."""
        waiting, self._waiting = self._waiting, []
        return [request.token for request in waiting]

    def close(self) -> None:
        """Ends the warm process; waiting for it is the caller's, who waits for all."""
        self._fresh = True
        self._kill()
        self._close_socket()

    def _warm_up(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "elastic.launch.warm", str(its.fileno()), *self._script.command()],
                env=self._env,
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket, self._ready, self._since_s = ours, False, time.monotonic()
        self._loop.register(ours, selectors.EVENT_READ, self._hear)

    def _hear(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(MESSAGE_MAX)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_socket()  # its death is on its way
                return
            message = json.loads(data)
            if message["say"] == "forked":
                asked, self._asked = self._asked, None
                assert asked is not None
                self._started(asked.token, message["pid"])
                self._go_on()
            elif message["say"] == "unfit":
                self._give_up(message["why"])
            else:
                self._ready, self._deaths = True, 0
                self._go_on()

    def _go_on(self) -> None:
        while self._fresh and self._waiting:
            self._spawn(self._waiting.pop(0))
        if self._ready and self._asked is None and self._waiting:
            self._fork(self._waiting.pop(0))

    def _fork(self, request: Request) -> None:
        message = {"env": dict(request.env), "fds": list(request.fds)}
        self._asked, self._asked_s = request, time.monotonic()
        with contextlib.suppress(OSError):  # its death is on its way, and hands the request back
            assert self._socket is not None
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(request.fds.values()))

    def _spawn(self, request: Request) -> None:
        fds = dict(request.fds)
        stdout, stderr = fds.pop("stdout", None), fds.pop("stderr", None)
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "elastic.launch.worker", *self._script.command()],
            env={**self._env, **request.env, **{name: str(fd) for name, fd in fds.items()}},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds.values()),
            start_new_session=True,
        )
        process.returncode = 0  # the agent waits for all its children itself
        self._started(request.token, process.pid)

    def _give_up(self, why: str) -> None:
        self._say(f"each worker starts as a fresh interpreter, which takes longer: {why}")
        self._fresh = True
        self._kill()
        self._go_on()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.returncode = 0
            self._process = None
        self._ready = False
        self._close_socket()

    def _close_socket(self) -> None:
        self._ready = False
        if self._socket is not None:
            self._loop.unregister(self._socket)
            self._socket.close()
            self._socket = None


def node_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the workers of a node have in common: a rank is a place in a view, and nothing of an outer launcher's."""
    env = {name: value for name, value in environ.items() if name not in _ABSENT and "TORCHELASTIC_" not in name}
    env.setdefault("OMP_NUM_THREADS", "1")
    return env

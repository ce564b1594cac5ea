"""The workers of a forked torchrun are forks, too: of a process that was forked from it before it had a second thread.

    torchrun            forkserver_process.py's fork; asks for a worker where it would start an interpreter
      ├ this            {"argv": …, "env": …, "cwd": …} with stdin, stdout, stderr -> {"pid": …}
      └ a worker        forked here, twice, so that torchrun becomes its parent

Promises  torchrun is its workers' parent, each has a session of its own, and real signals and exit statuses: to
          torchrun they are what subprocess.Popen gives it. This process ends with torchrun, and has no drill's mark.
Leaves    interpreters that are not like this one, and other programs than Python's, which torchrun starts as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

from tests.kit.forked_process import Forked

_MESSAGE_MAX, _FDS_MAX = 1 << 17, 4
_PR_SET_CHILD_SUBREAPER = 36
_WITHIN_S = 60.0
_READ_WHEN_LOADED = ("PYTHON", "LD_", "KMP_", "GOMP_", "MKL_", "ATEN_", "MALLOC_", "GLIBC_", "PYTORCH")


def fork_workers(hide: Callable[[], None], show: Callable[[Mapping[str, str]], None]) -> dict[str, Any] | None:
    """Returns None in this process, which may become torchrun; in a worker's process, what program that is.

    hide  takes the drill's mark from the process that workers are forked from
    show  gives a worker that of its environment
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    torchrun = os.getpid()
    if os.fork() == 0:
        ours.close()
        hide()
        os.setsid()  # Ctrl-C is torchrun's
        return _serve(theirs, torchrun, show)
    theirs.close()
    ours.settimeout(_WITHIN_S)
    start_fresh = SubprocessHandler._popen

    def start(handler: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Any:
        if args[:2] != (sys.executable, "-u") or _read(env) != _read(os.environ):
            return start_fresh(handler, args, env)
        output = handler._stdout.fileno() if handler._stdout else 1
        errors = handler._stderr.fileno() if handler._stderr else 2
        pid = _ask(ours, args[2:], env, [0, output, errors])
        return Forked(pid, os.pidfd_open(pid), lambda _: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    SubprocessHandler._popen = start  # type: ignore[method-assign, assignment]
    return None


def _ask(server: socket.socket, argv: Sequence[str], env: Mapping[str, str], streams: list[int]) -> int:
    request = json.dumps({"argv": argv, "env": env, "cwd": os.getcwd(), "machine": None}).encode()
    assert len(request) < _MESSAGE_MAX
    _adopt_orphans(True)
    try:
        socket.send_fds(server, [request], streams)
        return int(json.loads(server.recv(_MESSAGE_MAX))["pid"])
    finally:
        _adopt_orphans(False)


def _serve(requests: socket.socket, torchrun: int, show: Callable[[Mapping[str, str]], None]) -> dict[str, Any] | None:
    """Until torchrun has ended. A worker is told of when it has a session and its mark, so that it can be ended."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MESSAGE_MAX, _FDS_MAX)
        if not data:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)
            program = dict(json.loads(data))
            os.setsid()
            show(program["env"])
            os.write(tell, str(os.getpid()).encode())
            for number, of in enumerate(fds):
                os.dup2(of, number)
            for number in map(int, os.listdir("/proc/self/fd")):
                if number > 2:
                    with contextlib.suppress(OSError):
                        os.close(number)
            requests.detach()
            _wait_for_parent(torchrun)
            return program
        os.close(tell)
        os.waitpid(between, 0)
        requests.send(json.dumps({"pid": int(os.read(told, 16))}).encode())
        for number in (told, *fds):
            os.close(number)


def _wait_for_parent(parent: int) -> None:
    """Until who stood between has ended."""
    deadline = time.monotonic() + _WITHIN_S
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.001)


def _adopt_orphans(those_of_descendants: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(those_of_descendants), 0, 0, 0)


def _read(environ: Mapping[str, str]) -> dict[str, str]:
    """Of a worker's variables, those that libraries read once, and that torchrun does not set itself."""
    return {name: value for name, value in environ.items() if name.startswith(_READ_WHEN_LOADED)}

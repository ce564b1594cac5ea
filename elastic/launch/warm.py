"""The warm process of a node: it has imported what the script imports, and forks workers ahead of their time.

    warm -> agent   ready, or unfit with the reason
    agent -> warm   a socket: fork a process that waits at it
    warm -> agent   forked, with its pid
    agent -> that   the worker's variables and descriptors: now it is a worker

Promises  it runs no tensor operation (after one with two threads a forked child hangs: torch 2.13), starts no thread
          and holds nothing but its socket to the agent. What its imports start or initialise is found out: then
          it says why it is unfit, and workers become fresh interpreters.
          Workers are the agent's children, not its own: they are forked by a child that exits at once, so the
          kernel gives them to the agent (a subreaper). Its death costs nobody anything.
          A worker's random generators are seeded like a fresh process's, which no two forks would be by themselves.
Leaves    the worker's life to worker.py.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from elastic.launch import worker
from elastic.launch.script import Import, Script, imports_of, source_of

MESSAGE_MAX, FDS_MAX = 1 << 17, 16
RANK_VARIABLES = ("LOCAL_RANK", "ELASTIC_CHANNEL", "ELASTIC_PROGRESS", "ELASTIC_TOKEN", "ELASTIC_RESTART")
"""What differs between the workers of a node: a module that reads one while it is imported cannot be shared."""

_LAZY = ("elastic.run", "checkpoint.checkpointer", "torch._dynamo")
"""What workers would import on first use, while others wait for them: elastic.Run, the coordinator, any optimizer."""
_PR_SET_PDEATHSIG = 1


def main(fd: int, command: Sequence[str]) -> None:
    """Serves until the agent closes its end; in a forked worker, does not return."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    script = Script.of_command(command)
    search_path = script.search_path()
    if search_path is not None:
        sys.path[0] = search_path  # it was the current folder: this module was started with -m
    with socket.socket(fileno=fd) as agent:
        agent.set_inheritable(False)
        why = _prepare(script)
        _say(agent, {"say": "ready"} if why is None else {"say": "unfit", "why": why})
        a_worker = why is None and _serve(agent)
    if a_worker:
        worker.run(script)


def _prepare(script: Script) -> str | None:
    """Imports; returns why no worker may be forked from what is there then."""
    with _reads_of_rank_variables() as reads, contextlib.suppress(BaseException):  # the worker will say it
        source, package = source_of(script)
        for one in imports_of(source):
            _import(one, package)
    if reads:
        return f"a module reads {reads[0]} while it is imported, which differs between workers"
    if "torch" in sys.modules:
        for name in _LAZY:
            importlib.import_module(name)
    sys.stdout.flush()  # what an import has printed is not printed again by each fork
    gc.collect()
    gc.freeze()
    return _unfit()


def _import(one: Import, package: str) -> None:
    """A failure is left to the worker, which meets it again and raises."""
    with contextlib.suppress(BaseException):
        __import__(one.module, {"__package__": package, "__name__": "__main__"}, None, list(one.names), one.level)


def _unfit() -> str | None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import initialises CUDA"
    if names := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        return f"an import starts threads: {', '.join(names)}"
    child = os.fork()  # OpenBLAS ends its threads before a fork and starts them again when they are needed
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"an import starts {threads - 1} threads outside Python" if threads > 1 else None


def _serve(agent: socket.socket) -> bool:
    """False at the end, in the warm process; True in a worker."""
    while True:
        _, fds = _receive(agent)
        if not fds:
            return False
        with socket.socket(fileno=fds[0]) as requests:
            pid = _fork()
            if pid == 0:
                agent.close()
                return _wait_to_be_a_worker(requests)
        _say(agent, {"say": "forked", "pid": pid})


def _fork() -> int:
    """0 in the child; in the warm process its pid, once it is the agent's child."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.close(write)
            return 0
        os.write(write, pid.to_bytes(8, "little"))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        pid = int.from_bytes(pipe.read(), "little")
    os.waitpid(between, 0)
    assert pid > 0, "no process can be forked any more"
    return pid


def _wait_to_be_a_worker(requests: socket.socket) -> bool:
    os.setsid()
    data, fds = _receive(requests)
    if not data:
        os._exit(0)  # the agent needs it no more
    request = json.loads(data)
    os.environ.update(request["env"])
    for name, fd in zip(request["fds"], fds, strict=True):
        if name in worker.STREAMS:
            os.dup2(fd, worker.STREAMS[name])
            os.close(fd)
        else:
            os.environ[name] = str(fd)
    # Python's own generator is seeded anew in each fork. torch's and NumPy's are seeded from the system's entropy
    # when they are loaded, which was before the fork.
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    return True


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = sock.recvmsg(MESSAGE_MAX, socket.CMSG_LEN(FDS_MAX * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw)
    return data, list(fds)


def _say(agent: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        agent.send(json.dumps(message).encode())


@contextlib.contextmanager
def _reads_of_rank_variables() -> Iterator[list[str]]:
    """Collects the rank variables that somebody asks os.environ for meanwhile."""
    reads: list[str] = []
    plain: Any = type(os.environ)

    class Watched(plain):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            if key in RANK_VARIABLES:
                reads.append(key)
            return super().__getitem__(key)

    os.environ.__class__ = Watched
    try:
        yield reads
    finally:
        os.environ.__class__ = plain


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

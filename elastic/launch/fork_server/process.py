"""The fork server of a node: it has imported what the script imports, and forks workers ahead of their time.

    server -> agent  Ready, or Unfit with the reason; before that, what it Leaves to the workers
    agent -> server  a socket: fork a process that waits at it
    server -> agent  Forked, with its pid
    agent -> that   BecomeWorker, with the worker's variables and descriptors: now it is a worker

Promises  modules that it imports see what they would see in `python script.py` (processes/script.py,
          top_imports.py). One that must not be shared is found out (importing.py): then it starts itself again, and
          leaves to each worker that import and what the script does after it.
          The first one of a node may be a fork of the agent, which has loaded torch; where a script could tell
          (preloaded.py), it starts itself again as a fresh interpreter.
          It runs no tensor operation (after one with two threads a forked child hangs: torch 2.13), and holds nothing
          but its socket to the agent. Threads of its imports outside Python make it unfit: it says so, and workers
          become fresh interpreters.
          Workers are the agent's children, not its own: they are forked by a child that exits at once, so the
          kernel gives them to the agent (a subreaper). Its death costs nobody anything.
          A worker's random generators are like a fresh process's (generators.py).
Leaves    the worker's life to processes/worker.py.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import io
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from elastic.launch.fork_server.generators import Generators
from elastic.launch.fork_server.importing import Importing
from elastic.launch.fork_server.messages import (
    FDS_MAX,
    PACKET_MAX,
    TO_SPARE,
    BecomeWorker,
    Forked,
    Leaves,
    Ready,
    Unfit,
    packet,
    read,
)
from elastic.launch.fork_server.preloaded import Preloaded
from elastic.launch.fork_server.top_imports import top_imports
from elastic.launch.processes import worker
from elastic.launch.processes.script import MainModule, Script
from elastic.status.unread_output import drop_unread_output
from elastic_checkpoint import linux

NAME, SPARE = "elastic-forksrv", "elastic-spare"  # as `top` shows it, and what it has forked ahead

_LAZY = ("elastic.run", "elastic_checkpoint.checkpointer")
"""What workers would import on first use, while others wait for them: elastic.Run, the coordinator."""
_COMPILER = "torch._dynamo"  # which any optimizer imports on first use
_OF_COMPILER = re.compile(r"[\"'](TORCH|TRITON)")  # a variable that it reads when it is loaded, set by the script


def in_fork(agent: socket.socket, environ: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    """Be the fork server, in a fork of the agent, which has loaded torch; environ: of the agent's workers."""
    status = 1
    try:
        linux.lead_group()
        linux.keep_only(agent.fileno())
        os.environ.clear()
        os.environ.update(environ)
        main(agent.detach(), -1, command, Preloaded())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main(fd: int, statements: int, command: Sequence[str], preloaded: Preloaded | None = None) -> None:
    """Serve until the agent closes its end; in a forked worker, do not return.

    statements  how many of the script's first ones may be run at most; -1: nothing is known against any
    """
    linux.name_process(NAME)
    linux.signal_at_parents_end(signal.SIGKILL)
    drop_unread_output()
    environ, folder = dict(os.environ), os.getcwd()
    script = Script.of_command(command)
    main_module, generators = MainModule(script), Generators()
    with socket.socket(fileno=fd) as agent:
        agent.set_inheritable(False)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=False)  # what is printed by an import that is undone is lost
        again = _import(main_module, statements, preloaded)
        if again is not None:
            if again.why is not None:
                _say(agent, Leaves(why=again.why))
            agent.set_inheritable(True)
            os.chdir(folder)
            started = [
                "elastic.launch.fork_server.process",
                str(agent.fileno()),
                str(again.statements),
                *script.command(),
            ]
            os.execve(sys.executable, [sys.executable, "-m", *started], environ)
        why_unfit = _unfit()
        generators.imported()
        sys.stdout.flush()  # what an import has printed is not printed again by each fork
        gc.collect()
        gc.freeze()
        _say(agent, Ready() if why_unfit is None else Unfit(why=why_unfit))
        a_worker = why_unfit is None and _serve(agent)
    if a_worker:
        generators.settle()
        worker.run(main_module)


@dataclass(frozen=True)
class _Again:
    """This process is to start itself again; statements: as in `main`; why: that leaves something to the workers."""

    statements: int
    why: str | None = None


def _import(main_module: MainModule, statements: int, preloaded: Preloaded | None) -> _Again | None:
    """Import what the script does first; return how to start again where forks must not share it, or order shows."""
    source, last = "", 0  # the last line that was run
    added: list[str] = []  # to sys.path
    packages: set[str] = set()  # that the script has imported
    with Importing() as importing, contextlib.suppress(BaseException):  # a failure is the worker's to meet, and to say

        def order_shows() -> bool:
            return preloaded is not None and preloaded.shows(importing.changed) is not None

        if order_shows():
            return _Again(statements)
        source, filename = main_module.find()
        for number, statement in enumerate(top_imports(source, filename)):
            if number == statements:
                break
            path, done = list(sys.path), False
            with contextlib.suppress(BaseException):
                exec(statement.code, main_module.module.__dict__)
                done = True
            if order_shows():
                return _Again(statements)
            if (found := importing.found()) is not None:
                where = f"{os.path.basename(filename)} does from line {statement.line} on"
                return _Again(number, f"{found}: what {where}, each worker does afresh, which takes longer")
            if importing.read_by_script or not done:
                break
            if not statement.imports:
                added += [entry for entry in sys.path if entry not in path]
            last, packages = statement.last, packages | statement.packages
    if preloaded is not None and "torch" not in packages and preloaded.may_show(source.splitlines()[last:]):
        return _Again(statements)
    for entry in added:
        sys.path.remove(entry)  # the script adds it again
    main_module.clear()
    if "torch" in sys.modules:
        for name in (*_LAZY, *([] if _OF_COMPILER.search(source) else [_COMPILER])):
            importlib.import_module(name)
    return None


def _unfit() -> str | None:
    """Return why no worker can be forked from here: an import's threads outside Python; None: it can."""
    child = os.fork()  # OpenBLAS ends its threads before a fork and starts them again when they are needed
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = linux.thread_count()
    return f"an import starts {threads - 1} threads outside Python" if threads > 1 else None


def _serve(agent: socket.socket) -> bool:
    """Fork a process for each socket that comes; return False at the end, in the fork server, True in a worker."""
    while True:
        _, fds = _receive(agent)
        if not fds:
            return False
        with socket.socket(fileno=fds[0]) as requests:
            pid = _fork()
            if pid == 0:
                agent.close()
                return _wait_to_be_a_worker(requests)
        _say(agent, Forked(pid=pid))


def _fork() -> int:
    """Fork a child of the agent; return 0 in it, and in the fork server its pid, once it is the agent's child."""
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
    """Wait to be told to be a worker, and take its variables and descriptors."""
    linux.lead_group()
    linux.name_process(SPARE)
    data, fds = _receive(requests)
    if not data:
        os._exit(0)  # the agent needs it no more
    linux.name_process(worker.NAME)
    said: BecomeWorker = read(TO_SPARE, data)
    os.environ.update(said.env)
    for name, fd in zip(said.fds, fds, strict=True):
        if name in worker.STREAMS:
            os.dup2(fd, worker.STREAMS[name])
            os.close(fd)
        else:
            os.environ[name] = str(fd)
    return True


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = sock.recvmsg(PACKET_MAX, socket.CMSG_LEN(FDS_MAX * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw)
    return data, list(fds)


def _say(agent: socket.socket, said: Leaves | Ready | Unfit | Forked) -> None:
    with contextlib.suppress(BrokenPipeError):
        agent.send(packet(said))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

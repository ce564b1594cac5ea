"""The process that forkserver.py forks programs from: it has imported torch, and what else it is told to; that is all.

    python -m tests.kit.forkserver_process FD PARENT MARK MODULE…

    parent -> this     {"argv": …, "env": …, "cwd": …} with stdin, stdout, stderr and the pipe for the exit status;
                       "machine": what forked_host.py enters before that, or null
    this   -> parent   {"pid": …}
    this   -> pipe     the exit status as subprocess has it, in text, when the program has ended

Promises  it has one thread, and runs no tensor operation: what it forks can do everything (torch 2.13: after one with
          two threads a forked child hangs). It ends with its parent, and its programs do, however the parent ended.
          Of the product it imports what it is told to and nothing else: in a program, bugs are planted before that.
          A program finds argv, environment, working directory and streams as if it had been started afresh, a session
          of its own, and in /proc its drill's mark: the variable MARK. It ends as an interpreter does, but for the
          modules that it shares with this process: taking them apart is 0.3 s of a processor.
Leaves    which programs may be forked to forkserver.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

MESSAGE_MAX, TAKEN = 1 << 17, 8
ROOM = 1000  # for a mark: the characters that are reserved in this process's environment
_NAME = b"tests-forks"
_PR_SET_NAME = 15
_NEEDED = ("builtins", "sys", "__main__")  # at the very end
_shared = set[str]()


def main(fd: int, parent: int, modules: Sequence[str]) -> dict[str, Any] | None:
    """Serves until the parent ends. In a program's process it returns what that program is."""
    _name_process(_NAME)
    atexit.register(_keep_modules)  # before anybody else does, so that it runs last
    for name in modules:
        importlib.import_module(name)
    for of_torch in weakref.finalize._registry:  # type: ignore[attr-defined]
        of_torch.atexit = False  # each takes an operator out of its tables
    _shared.update(name for name in sys.modules if name not in _NEEDED)
    assert len(os.listdir("/proc/self/task")) == 1, "an import has started a thread"
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as requests:
        watched = select.poll()
        watched.register(requests, select.POLLIN)
        watched.register(os.pidfd_open(parent), select.POLLIN)
        running: dict[int, tuple[int, int]] = {}  # of each program's pidfd, its pid and the pipe for its status
        while True:
            for ready, _ in watched.poll():
                if ready in running:
                    watched.unregister(ready)
                    _report_end(ready, *running.pop(ready))
                elif ready != requests.fileno():  # the parent has ended
                    _end_all(running)
                    return None
                else:
                    data, fds, _, _ = socket.recv_fds(requests, MESSAGE_MAX, TAKEN)
                    if not data:
                        _end_all(running)
                        return None
                    pid = os.fork()
                    if pid == 0:
                        for number, of in enumerate(fds[:3]):
                            os.dup2(of, number)
                        _close_all_but_streams()
                        requests.detach()
                        return dict(json.loads(data))
                    for of in fds[:3]:
                        os.close(of)
                    pidfd = os.pidfd_open(pid)
                    running[pidfd] = pid, fds[3]
                    watched.register(pidfd, select.POLLIN)
                    requests.send(json.dumps({"pid": pid}).encode())


def become(program: dict[str, Any], mark: str) -> None:
    """Runs it, and returns or raises as it does. In a process that is its alone."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    _name_process(b"python")
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # as each interpreter has its own numbers
    os.chdir(program["cwd"])
    environ: dict[str, str] = program["env"]
    os.environ.clear()
    _show(mark, environ.get(mark, ""))
    os.environ.update(environ)
    if program["machine"] is not None:
        from tests.kit.forked_host import enter

        enter(program["machine"])
    if program["argv"][:2] == ["-m", "torch.distributed.run"]:
        from tests.kit.forked_torchrun import fork_workers

        def hide() -> None:
            _name_process(_NAME)
            _show(mark, "")

        worker = fork_workers(hide, lambda its: _show(mark, its.get(mark, "")))
        if worker is not None:
            become(worker, mark)
            return
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # they are of the folder in which pytest was started
    sys.orig_argv = [sys.executable, *program["argv"]]  # by which it may start itself again
    run(program["argv"], [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder])


def run(argv: Sequence[str], path: Sequence[str]) -> None:
    """As `python *argv` with PYTHONPATH; `-m elastic run`, also where it is called later, knows that torch is
    loaded as its workers would load it."""
    sys.path[1:1] = [folder for folder in path if folder not in sys.path[1:]]
    for folder in path:
        if os.path.exists(custom := os.path.join(folder, "sitecustomize.py")):
            runpy.run_path(custom)
            break
    if argv[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *argv[2:]], ""
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    if argv[0] != "-m":
        sys.argv, sys.path[0] = list(argv), os.path.dirname(os.path.abspath(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")
        return
    sys.argv, sys.path[0] = list(argv[1:]), os.getcwd()
    if argv[1:3] == ["elastic", "run"]:
        from elastic.launch.run_command import main as elastic_run

        sys.exit(elastic_run(argv[3:], preloaded=True))
    if argv[1] == "elastic.drill.inject.latecomer":
        from elastic.drill.inject.latecomer import main as latecomer

        sys.exit(latecomer(argv[2:], preloaded=True))
    if argv[1] == "torch.distributed.run":
        from elastic.launch.processes.ending import end
        from elastic.launch.rendezvous.caller_names import name_callers_quickly

        name_callers_quickly()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        end(0)  # the interpreter of who only launches need not be taken apart
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


def _keep_modules() -> None:
    """The end of the interpreter does not find those that were there before the program; what it made is destroyed."""
    kept = [sys.modules.pop(name) for name in _shared if name in sys.modules]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _report_end(pidfd: int, pid: int, status: int) -> None:
    os.close(pidfd)
    _, ended = os.waitpid(pid, 0)
    with open(status, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(str(os.waitstatus_to_exitcode(ended)).encode())


def _end_all(running: Iterable[int]) -> None:
    """Each program's own processes end with it."""
    for pidfd in running:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _close_all_but_streams() -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:
            with contextlib.suppress(OSError):
                os.close(number)


def _name_process(name: bytes) -> None:
    """As `top` shows it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _show(mark: str, value: str) -> None:
    """In /proc/self/environ, which shows the memory in which the kernel has laid the first environment."""
    begin, end = _environment_memory()
    at = ctypes.string_at(begin, end - begin).find(f"{mark}=".encode())
    shown = f"{mark}={value}".encode()
    assert at >= 0, f"{mark} is not in the environment that this process was started with"
    assert len(value) < ROOM, f"a mark of {len(value)} characters where there is room for {ROOM}"
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin + at, shown, len(shown))


def _environment_memory() -> tuple[int, int]:
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[47]), int(fields[48])


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # what goes on is no child of the parent's
    its_mark = sys.argv[3]
    forked = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:])
    if forked is not None:
        become(forked, its_mark)

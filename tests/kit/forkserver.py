"""Starts programs as forks of one process that has imported torch; a fresh interpreter takes seconds of a processor.

    ForkedMachine().start(command, …)   as elastic.drill.machine.hosting.ThisMachine
    start(command, …)          as subprocess.Popen
    piped(command, …)          as subprocess.Popen with text pipes, of `-c` and of any module, too
    start_machine(command, …)  as elastic.drill.hosts.hosts.Hosts.boot

A program whose PYTHONPATH is another, which may change any module of ours, is forked before they are imported.

Promises  a forked program is a process like any other: real signals, a session of its own, an exit status.
          What the beginning of an interpreter, or of torch, could have made different is started afresh: another
          interpreter or module than those below, or a variable that they read when they are loaded.
Leaves    programs whose imports are what a test is about: those start afresh, by `FRESH` in their environment, too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic.drill.machine.hosting import Node, ThisMachine
from elastic.drill.machine.processes import MARK
from tests.kit.forked_process import Forked
from tests.kit.forkserver_process import MESSAGE_MAX, ROOM

FRESH = "TESTS_FRESH_INTERPRETER"
"""A variable; where a program's environment has it, the program is a fresh interpreter."""
_ROOT = Path(__file__).parents[2]
_READY_S = 120.0
_PROGRAMS = (
    ("-m", "elastic", "run"),
    ("-m", "elastic.drill.inject.latecomer"),
    ("-m", "torch.distributed.run"),
)
OTHERS = (
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.x509",
    "fsspec.implementations.local",
    "rich.console",
    "safetensors.torch",
    "tenacity",
    "xxhash",
)
OURS = (
    "elastic.launch.agent",
    "elastic.launch.arguments",
    "elastic.launch.processes.ending",
    "elastic.launch.meeting",
    "elastic.launch.fork_server.process",
    "elastic.run",
    "elastic.drill.inject.injector",
    "elastic_checkpoint.checkpointer",
    "elastic_checkpoint.runs.liveness",
)
_READ_WHEN_LOADED = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "ATEN_", "TORCH", "PYTORCH", "MALLOC_", "GLIBC_")
_ALWAYS = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
"""What drills set, and `elastic run` before it loads torch."""


class ForkedMachine(ThisMachine):
    """Its nodes are forks where they can be."""

    def __repr__(self) -> str:
        return "ForkedMachine()"  # one is like another

    def start(self, command: Sequence[str], *, env: Mapping[str, str], output: Path) -> Node:
        with output.open("ab") as out:
            return start(command, env=env, cwd=os.getcwd(), output=out.fileno())


def start(command: Sequence[str], *, env: Mapping[str, str], cwd: str | os.PathLike[str], output: int) -> Node:
    """A program in a session of its own, without standard input; both its streams are `output`."""
    if may_be_forked(command, env):
        return _server(env).start(command[1:], env, os.fspath(cwd), output)
    return subprocess.Popen(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )


def piped(command: Sequence[str], *, cwd: str | os.PathLike[str] = _ROOT) -> Piped:
    """A program in a session of its own, with this process's environment, that is spoken to; it is no child of ours."""
    assert command[0] == sys.executable
    env = dict(os.environ)
    ours: list[int] = []
    theirs: list[int] = []
    for is_input in (True, False, False):
        reads, writes = os.pipe()
        ours.append(writes if is_input else reads)
        theirs.append(reads if is_input else writes)
    try:
        forked = _server(env).start(command[1:], env, os.fspath(cwd), theirs[1], stdin=theirs[0], errors=theirs[2])
    finally:
        for end in theirs:
            os.close(end)
    return Piped(forked, ours)


def start_machine(
    command: Sequence[str],
    machine: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    output: int,
) -> Node:
    """A program that may be forked, on a machine of its own: see forked_host.py."""
    return _server(env).start(command[1:], env, os.fspath(cwd), output, machine)


class Piped:
    """A forked program with pipes; as subprocess.Popen with text=True, and in a `with` it is killed at the end."""

    def __init__(self, forked: Forked, ends: Sequence[int]) -> None:
        self.pid = forked.pid
        self._forked = forked
        self.stdin = os.fdopen(ends[0], "w", encoding="utf-8")
        self.stdout, self.stderr = (os.fdopen(end, encoding="utf-8") for end in ends[1:])

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def poll(self) -> int | None:
        return self._forked.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        return self._forked.wait(timeout)

    def send_signal(self, sig: int) -> None:
        self._forked.send_signal(sig)

    def kill(self) -> None:
        self._forked.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for its end; then what it has written, which must be less than pipes hold. A second time: nothing."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.wait(timeout)
        said = tuple("" if one.closed else one.read() for one in (self.stdout, self.stderr))
        self.stdout.close()
        self.stderr.close()
        return said[0], said[1]


class _Forkserver:
    """Runs until this process ends, and is no child of it: tests count children."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # torch loads tqdm, which reads its variables then; another test may have set them in this process.
        own = {name: value for name, value in os.environ.items() if not name.startswith("TQDM_")}
        arguments = [str(theirs.fileno()), str(os.getpid()), MARK, *modules]
        with theirs:
            subprocess.run(
                [sys.executable, "-m", "tests.kit.forkserver_process", *arguments],
                cwd=_ROOT,
                env={**own, **_ALWAYS, MARK: "-" * ROOM},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        self._requests.settimeout(_READY_S)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        output: int,
        machine: Mapping[str, Any] | None = None,
        *,
        stdin: int | None = None,
        errors: int | None = None,
    ) -> Forked:
        status, its = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        request = json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd, "machine": machine}).encode()
        assert len(request) < MESSAGE_MAX
        try:
            streams = [null if stdin is None else stdin, output, output if errors is None else errors]
            socket.send_fds(self._requests, [request], [*streams, its])
        finally:
            os.close(null)
            os.close(its)
        pid = json.loads(self._requests.recv(MESSAGE_MAX))["pid"]
        return Forked(pid, status, _status)


def _status(reads: int) -> int:
    said = os.read(reads, 16)
    assert said, "the forkserver has ended, so nobody knows how its programs did"
    return int(said)


@functools.cache
def _forkserver(owner: int, modules: Sequence[str]) -> _Forkserver:
    """owner: this process; what was forked from it has its own."""
    return _Forkserver(modules)


def _server(env: Mapping[str, str]) -> _Forkserver:
    path_is_ours = env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    return _forkserver(os.getpid(), (*OTHERS, *OURS) if path_is_ours else OTHERS)


def may_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Scripts, modules of the tests, and the launchers."""
    program = tuple(command[1:])
    is_ours = program[0].endswith(".py") or (program[0] == "-m" and program[1].startswith("tests."))
    is_launcher = any(program[: len(one)] == one for one in _PROGRAMS)
    alike = command[0] == sys.executable and FRESH not in env and _read(env) == _read(os.environ)
    return alike and (is_ours or is_launcher)


def _read(environ: Mapping[str, str]) -> dict[str, str]:
    """Of a program's variables, those that python or torch read once."""
    all_of_them = {**_ALWAYS, **environ}
    read = {name: value for name, value in all_of_them.items() if name.startswith(_READ_WHEN_LOADED)}
    read.pop("PYTHONPATH", None)
    return read

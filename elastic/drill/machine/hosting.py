"""Where the nodes of a drill's run are: on this machine, or on hosts of their own (hosts/on_hosts.py)."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from elastic.drill.machine.processes import pid_in
from elastic.errors import ConfigError
from elastic_checkpoint.linux import first_ephemeral_port

_FIRST, _LAST = 10_000, 60_000
_TRIES = 200


class Node(Protocol):
    """A launcher's process that a drill starts and ends, as subprocess.Popen has it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int, /) -> None: ...


class NodeHosting(Protocol):
    """The place where the nodes of one run are, which starts them in all its launches."""

    @property
    def endpoint(self) -> str:
        """Return the --rdzv-endpoint of this launch."""

    def begin(self) -> None:
        """Begin the next launch."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that all nodes have beside those of the run."""

    def start(self, command: Sequence[str], *, env: Mapping[str, str], output: Path) -> Node:
        """Start a node's launcher, which appends what it prints to `output`."""

    def pid(self, worker: str) -> int:
        """Return the pid of the worker that has this id, as this process sees it; 0: it has ended."""

    def left_behind(self, *, killed: bool) -> list[str]:
        """Return what this launch left on machines of its own, in words; `killed` says that workers were."""

    def close(self) -> None:
        """End what hosts the nodes."""


class ThisMachine:
    """The hosting of nodes that are all on this machine, and meet at a free port of it."""

    endpoint = ""

    def begin(self) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"

    def environment(self) -> Mapping[str, str]:
        return {}

    def start(self, command: Sequence[str], *, env: Mapping[str, str], output: Path) -> Node:
        with output.open("ab") as out:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def pid(self, worker: str) -> int:
        return pid_in(worker)

    def left_behind(self, *, killed: bool) -> list[str]:
        return []

    def close(self) -> None:
        pass


def free_port() -> int:
    """Return a port for agents of several nodes, which must be told it before any of them listens.

    Nobody listens there now. Raises ConfigError if no port is to be had.
    """
    # below those that the kernel gives to whoever asks for any: of these another program may have it by then
    below = range(_FIRST, first_ephemeral_port()) or range(_FIRST, _LAST)
    for _ in range(_TRIES):
        port = secrets.choice(below)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ConfigError(
        f"no free port for the drill's nodes to meet at: {_TRIES} of {below.start} to {below.stop - 1} were tried\n"
        "  state  nothing was started\n"
        "  next   see what listens there (ss -ltn), and whether this process may open sockets at 127.0.0.1"
    )

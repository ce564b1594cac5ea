"""Where the nodes of a drill's run are: on this machine, or on hosts of their own (hosts/on_hosts.py)."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from elastic.drill.machine.node import Node
from elastic.drill.machine.processes import pid_in
from elastic.errors import ConfigError
from elastic_checkpoint.linux import first_ephemeral_port

_FIRST, _LAST = 10_000, 60_000
_TRIES = 200


class NodeHosting(Protocol):
    """Of one run, for all its launches."""

    def begin(self) -> None:
        """The next launch."""

    @property
    def endpoint(self) -> str:
        """--rdzv-endpoint of this launch."""

    def environment(self) -> Mapping[str, str]:
        """What all nodes have beside that of the run."""

    def start(self, command: Sequence[str], *, env: Mapping[str, str], output: Path) -> Node:
        """A node."""

    def pid(self, worker: str) -> int:
        """Of the worker that has this id, as this process sees it; 0: it has ended."""

    def left_behind(self, *, killed: bool) -> list[str]:
        """What this launch left on machines of its own, in words. killed: workers were"""

    def close(self) -> None:
        """Nothing of it is needed any more."""


class ThisMachine:
    def __init__(self) -> None:
        self.endpoint = ""

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
    """One for agents of several nodes, which must be told it before any of them listens.

    Nobody listens there, and it is below those that the kernel gives to whoever asks for any: of these another program
    may have it by then. Raises ConfigError where no port is to be had.
    """
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

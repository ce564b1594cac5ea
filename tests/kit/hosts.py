"""Hosts as the drill has them (elastic/drill/hosts), which moreover stand still, and whose clocks are wrong.

Needs a C compiler where a clock is to be wrong: time namespaces do not shift the wall clock, so clock.c is preloaded.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from elastic.drill.hosts import hosts
from elastic.drill.hosts.hosts import Machine
from elastic.drill.hosts.network import WITHIN_S, name, until
from elastic.drill.machine.hosting import Node
from elastic_checkpoint import linux
from tests.kit import forkserver

_CLOCK = Path(__file__).with_name("clock.c")


class Hosts(hosts.Hosts):
    def start(
        self, host: int, command: Sequence[str], *, env: Mapping[str, str], output: Path, cwd: Path | None = None
    ) -> Machine:
        clock = preloaded(self.folder, offset) if (offset := self._clock(host)).exists() else {}
        return super().start(host, command, env={**env, **clock}, output=output, cwd=cwd)

    def boot(
        self, host: int, command: Sequence[str], report: Path, *, env: Mapping[str, str], cwd: Path | None, output: int
    ) -> Node:
        """Forked where it can be: not with a clock that is preloaded, nor with modules of its own."""
        modules_are_ours = env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
        if not (modules_are_ours and forkserver.may_be_forked(command, env)):
            return super().boot(host, command, report, env=env, cwd=cwd, output=output)
        machine = {
            "network": self.network(host),
            "booted_s": self.booted_s(host),
            "names": str(self.names),
            "name": name(host),
            "report": str(report),
            "orphans_s": self.orphans_s,
        }
        return forkserver.start_machine(command, machine, env=env, cwd=cwd or Path.cwd(), output=output)

    def set_clock(self, host: int, seconds: int) -> None:
        """The wall clock of this host's next machine is so much off; of one that was so started, from now on."""
        with self._clock(host).open("r+b" if self._clock(host).exists() else "wb") as file:
            file.write(off_by(seconds))

    def freeze(self, host: int) -> None:
        """SIGSTOP to all that runs there; the parent first, or it would see to its children. The kernel's own answers
        go on: cut it, too, where a virtual machine is meant that stands still."""
        stopped = set[int]()
        while new := [pid for pid in self.pids(host) if pid not in stopped]:
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            stopped.update(new)
        until(lambda: all(_state(pid) in "TZ" for pid in stopped), f"{name(host)} to stand still")

    def thaw(self, host: int) -> None:
        """The parent last."""
        for pid in reversed(self.pids(host)):
            _signal(pid, signal.SIGCONT)

    def _clock(self, host: int) -> Path:
        return self.folder / f"clock-{name(host)}"


def preloaded(folder: Path, offset: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is off by the seconds in `offset`, as `off_by` writes them."""
    if not (library := folder / "clock.so").exists():
        compiler = shutil.which("cc")
        assert compiler is not None, "needs a C compiler"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _CLOCK], check=True, timeout=WITHIN_S)
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}


def off_by(seconds: int) -> bytes:
    return struct.pack("=q", seconds)


def _state(pid: int) -> str:
    stat = linux.process_stat(pid)
    return stat.state if stat is not None else "Z"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

"""Hosts h1, h2, … of one network: their machines crash, lose their power, stand still, or are told to stop.

A machine is one command on a host (network.py), below an init of its own (machine.py): host name, processes, shared
memory, and a clock that counts from another boot. A host outlives its machine, as a network does: a machine that
crashes resets its connections, one that loses its power does not.

Needs root, iproute2 and util-linux; a C compiler where a clock is to be wrong: time namespaces do not shift the wall
clock, so clock.c is preloaded.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from checkpoint import linux
from tests.kit.network import DIES_WITH_US, WITHIN_S, Network, address, end, name, until

HOW_TO_INSTALL = "apt-get update && apt-get install -y --no-install-recommends iproute2 util-linux"
_PROGRAMS = ("ip", "tc", "nsenter", "unshare", "setpriv")
_NAMES_MAX = 64
_BOOTED_APART_S = 100_000
_CLOCK = Path(__file__).with_name("clock.c")
_MACHINE = Path(__file__).with_name("machine.py")
_BOOT = """
set -e
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /var/tmp
mount --bind "$1" /etc/hosts
echo "$2" > /proc/sys/kernel/hostname
shift 2
exec "$@"
"""


@functools.cache
def missing() -> str | None:
    """Why this machine cannot have hosts; None: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for network namespaces"
    if lacking := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"needs {', '.join(lacking)}: {HOW_TO_INSTALL}"
    command = ["unshare", "--net", "--time", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    return f"needs the right to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True)
class Outcome:
    """How a machine's command ended; left: what it left behind, in words."""

    status: int
    left: tuple[str, ...]


@dataclass
class _Machine:
    process: subprocess.Popen[bytes]  # its parent outside; the kernel kills the machine with it
    init: int
    report: Path


class Hosts(Network):
    """`count` hosts, numbered from 1, without a machine at first. `with` ends all of them.

    folder  for their files
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._folder = folder
        self._machines: dict[int, _Machine] = {}
        self._started = 0
        folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{address(host)} {name(host)}\n" for host in range(1, _NAMES_MAX + 1))
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        super().__init__(count)

    def start(
        self, host: int, command: Sequence[str], *, env: Mapping[str, str], output: Path, cwd: Path | None = None
    ) -> None:
        """Runs a command as this host's machine, which must not run another. TMPDIR should be /var/tmp, its own."""
        assert not self.running(host), f"{name(host)} runs already"
        self._started += 1
        report = self._folder / f"machine-{self._started}.json"
        booted = str(host * _BOOTED_APART_S)
        spaces = ["--uts", "--ipc", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        spaces += ["--time", "--monotonic", booted, "--boottime", booted]
        boot = ["sh", "-c", _BOOT, "boot", str(self._folder / "hosts"), name(host)]
        init = [sys.executable, "-S", str(_MACHINE), str(report), *command]
        clock = {}
        if (offset := self._clock(host)).exists():
            clock = {"LD_PRELOAD": str(self._folder / "clock.so"), "CLOCK_OFFSET": str(offset)}
        with output.open("ab") as out:
            process = subprocess.Popen(
                [*DIES_WITH_US, *self.inside(host), "unshare", *spaces, *boot, *init],
                env={**os.environ, **env, **clock},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.open.callback(end, process)
        until(lambda: linux.children(process.pid) or process.poll() is not None, f"{name(host)} to boot")
        assert process.poll() is None, f"{name(host)} did not boot: {output.read_text(errors='replace')[-2000:]}"
        (pid,) = linux.children(process.pid)
        self._machines[host] = _Machine(process, pid, report)
        self.open.callback(self.crash, host)

    def set_clock(self, host: int, seconds: int) -> None:
        """The wall clock of this host's next machine is so much off; of one that was so started, from now on."""
        if not (library := self._folder / "clock.so").exists():
            compiler = shutil.which("cc")
            assert compiler is not None, "needs a C compiler"
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _CLOCK], check=True, timeout=WITHIN_S)
        with self._clock(host).open("r+b" if self._clock(host).exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    def running(self, host: int) -> bool:
        return host in self._machines and self._machines[host].process.poll() is None

    def ended(self, host: int) -> Outcome | None:
        """Of the machine that this host had last; None: it runs, or was killed."""
        machine = self._machines[host]
        if machine.process.poll() is None or not machine.report.exists():
            return None
        said = json.loads(machine.report.read_text())
        return Outcome(said["status"], tuple(said["left"]))

    def crash(self, *hosts: int) -> float:
        """SIGKILL to all that runs there, together; the network resets what it had open. Returns the time before."""
        at, running = time.time(), [self._machines[host] for host in hosts if self.running(host)]
        for machine in running:
            os.kill(machine.init, signal.SIGKILL)
        for machine in running:
            machine.process.wait(WITHIN_S)  # the kernel ends the others of the namespace first
        return at

    def lose_power(self, *hosts: int) -> float:
        """They crash, and nobody is told."""
        at = self.cut(*hosts)
        self.crash(*hosts)
        return at

    def terminate(self, host: int) -> float:
        """SIGTERM to the command: the host is told to stop."""
        at = time.time()
        os.kill(self._machines[host].init, signal.SIGTERM)
        return at

    def freeze(self, host: int) -> float:
        """SIGSTOP to all that runs there; the parent first, or it would see to its children. The kernel's own answers
        go on: cut it, too, where a virtual machine is meant that stands still."""
        at, stopped = time.time(), set[int]()
        while new := [pid for pid in self.pids(host) if pid not in stopped]:
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            stopped.update(new)
        until(lambda: all(_state(pid) in "TZ" for pid in stopped), f"{name(host)} to stand still")
        return at

    def thaw(self, host: int) -> None:
        """The parent last."""
        for pid in reversed(self.pids(host)):
            _signal(pid, signal.SIGCONT)

    def pids(self, host: int) -> list[int]:
        """Of all that runs there, the eldest first; as this process sees them."""
        space, found = os.readlink(f"/proc/{self._machines[host].init}/ns/pid"), []
        for entry in os.listdir("/proc"):
            with suppress(OSError):  # it has ended
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == space:
                    stat = linux.process_stat(entry)
                    found += [(stat.started, int(entry))] if stat is not None and not stat.is_dead else []
        return [pid for _, pid in sorted(found)]

    def has_process(self, host: int, pid: int) -> bool:
        """pid  as the machine itself counts"""
        if not self.running(host):
            return False
        stat = linux.process_stat(pid, Path(f"/proc/{self._machines[host].init}/root/proc"))
        return stat is not None and not stat.is_dead

    def _clock(self, host: int) -> Path:
        return self._folder / f"clock-{name(host)}"


def _state(pid: int) -> str:
    stat = linux.process_stat(pid)
    return stat.state if stat is not None else "Z"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

"""Hosts h1, h2, … of one network: their machines crash, lose their power, or are told to stop.

A machine is one command on a host (network.py), below an init of its own (machine.py): host name, processes, shared
memory, and a clock that counts from another boot. A host outlives its machine, as a network does: a machine that
crashes resets its connections, one that loses its power does not.

Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elastic.drill.environment import DRILL_NODE
from elastic.drill.hosts.network import DIES_WITH_US, HOSTS_MAX, WITHIN_S, Network, address, end, name, until
from elastic.drill.machine.hosting import Node
from elastic.errors import ElasticError
from elastic_checkpoint import linux

HOW_TO_INSTALL = "apt-get update && apt-get install -y --no-install-recommends iproute2 util-linux"
ORPHANS_S = 10.0  # what a machine's command has started ends this soon after it, or counts as left behind
_PROGRAMS = ("ip", "tc", "nsenter", "unshare", "setpriv")
_BOOTED_APART_S = 100_000
_MACHINE = Path(__file__).with_name("machine.py")
_TELLS_ITS_PID = ("sh", "-c", f'{DRILL_NODE}=$$ exec "$@"', "start")
BOOT = """
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
    """Return why this machine cannot have hosts; None: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for network namespaces"
    if lacking := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"needs {', '.join(lacking)}: {HOW_TO_INSTALL}"
    command = ["unshare", "--net", "--time", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    return f"needs the right to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True)
class Outcome:
    """The end of a machine's command: its exit status, and what it left behind there, in words."""

    status: int
    left_behind: tuple[str, ...]


class Machine:
    """One command on a host: for whoever watches it, as subprocess.Popen has it. Its exit status is the command's.

    pid   of its parent outside; the kernel kills the machine with it. What runs there knows it (drill/environment.py)
    init  its process 1, as it is called outside; None: not seen yet
    """

    def __init__(self, process: Node, report: Path) -> None:
        self.pid = process.pid
        self.init: int | None = None
        self._process = process
        self._report = report

    def boots(self) -> bool:
        """Return whether its init was ever seen. One that ends at once may never be: it has an outcome then."""
        if self.init is None:
            self.init = next(iter(linux.children(self.pid)), None)
        return self.init is not None

    @property
    def outcome(self) -> Outcome | None:
        """Return how its command ended; None: it runs, or was killed."""
        if self._process.poll() is None or not self._report.exists():
            return None
        said = json.loads(self._report.read_text())
        return Outcome(said["status"], tuple(said["left_behind"]))

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        if self._process.poll() is None:
            return None
        return outcome.status if (outcome := self.outcome) is not None else -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        self._process.wait(timeout)
        return self.returncode or 0

    def kill(self) -> None:
        """Kill all that runs on the machine, together."""
        self.send_signal(signal.SIGKILL)  # the kernel ends the others of the namespace before its init

    def send_signal(self, number: int) -> None:
        """Send SIGTERM to the command, unless the machine has ended."""
        if self._process.poll() is None and self.init is not None:
            with suppress(ProcessLookupError):
                os.kill(self.init, number)


class Hosts(Network):
    """`count` hosts, numbered from 1, without a machine at first. `with` ends all of them.

    folder     for their files
    names      of all hosts, a file for /etc/hosts
    orphans_s  see ORPHANS_S
    """

    def __init__(self, count: int, folder: Path, *, orphans_s: float = ORPHANS_S) -> None:
        self.folder = folder
        self.orphans_s = orphans_s
        self._machines: dict[int, Machine] = {}
        self._started = 0
        folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"{address(host)} {name(host)}\n" for host in range(1, HOSTS_MAX + 1))
        self.names = folder / "hosts"
        self.names.write_text(f"127.0.0.1 localhost\n{names}")
        super().__init__(count)

    def start(
        self, host: int, command: Sequence[str], *, env: Mapping[str, str], output: Path, cwd: Path | None = None
    ) -> Machine:
        """Run a command as this host's machine, which must not run another. TMPDIR should be /var/tmp, its own."""
        if self.running(host):
            raise ElasticError(f"{name(host)} runs already")
        self._started += 1
        report = self.folder / f"machine-{self._started}.json"
        with output.open("ab") as out:
            process = self.boot(host, command, report, env={**os.environ, **env}, cwd=cwd, output=out.fileno())
        self.open.callback(end, process)
        machine = Machine(process, report)
        until(lambda: machine.boots() or process.poll() is not None, f"{name(host)} to boot")
        if not machine.boots() and machine.outcome is None:
            raise ElasticError(f"{name(host)} did not boot: {output.read_text(errors='replace')[-2000:]}")
        self._machines[host] = machine
        self.open.callback(self.crash, host)
        return machine

    def boot(
        self, host: int, command: Sequence[str], report: Path, *, env: Mapping[str, str], cwd: Path | None, output: int
    ) -> Node:
        """Start the process that ends with this host's machine, whose init is its only child.

        report  the file that the init writes
        """
        booted = str(self.booted_s(host))
        spaces = ["--uts", "--ipc", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        spaces += ["--time", "--monotonic", booted, "--boottime", booted]
        names = ["sh", "-c", BOOT, "boot", str(self.names), name(host)]
        init = [sys.executable, "-S", str(_MACHINE), str(report), str(self.orphans_s), *command]
        return subprocess.Popen(
            [*_TELLS_ITS_PID, *DIES_WITH_US, *self.inside(host), "unshare", *spaces, *names, *init],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def booted_s(self, host: int) -> int:
        """Return by how many seconds this host's clocks that count from a boot are ahead of this machine's."""
        return host * _BOOTED_APART_S

    def running(self, host: int) -> bool:
        return host in self._machines and self._machines[host].poll() is None

    def ended(self, host: int) -> Outcome | None:
        """Return how its last machine ended; None: it runs, or was killed."""
        return self._machines[host].outcome

    def crash(self, *hosts: int) -> None:
        """Kill all that runs on these hosts, together; the network resets the connections that they had open."""
        running = [self._machines[host] for host in hosts if self.running(host)]
        for machine in running:
            machine.kill()
        for machine in running:
            machine.wait(WITHIN_S)

    def lose_power(self, *hosts: int) -> None:
        """Cut these hosts off, then crash them, so that nobody is told."""
        self.cut(*hosts)
        self.crash(*hosts)

    def terminate(self, host: int) -> None:
        """Send SIGTERM to the command: the host is told to stop."""
        self._machines[host].send_signal(signal.SIGTERM)

    def pids(self, host: int) -> list[int]:
        """Return the pids of all that runs on a host, the eldest first, as this process sees them."""
        found: list[tuple[int, int]] = []
        try:
            space = os.readlink(f"/proc/{self._machines[host].init}/ns/pid")
        except OSError:  # all have ended
            return []
        for entry in os.listdir("/proc"):
            with suppress(OSError):  # it has ended
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == space:
                    stat = linux.process_stat(entry)
                    found += [(stat.started, int(entry))] if stat is not None and not stat.is_dead else []
        return [pid for _, pid in sorted(found)]

    def pid_outside(self, host: int, pid: int) -> int | None:
        """Return the pid by which this process sees that one, which the host's machine counts; None: it has ended."""
        if not self.running(host):
            return None
        for outside in self.pids(host):
            with suppress(OSError):  # it has ended
                status = Path(f"/proc/{outside}/status").read_text()
                inside = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
                if int(inside) == pid:
                    return outside
        return None

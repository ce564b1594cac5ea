"""Which processes belong to a drill, and an end to all of them at once. Linux: reads /proc.

A drill's processes carry a mark in the environment that they were started with, which forks and re-parented orphans
keep: no pid is remembered, so none can be missed or, once reused, hit by mistake.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from elastic.launch.fork_server.process import NAME as FORK_SERVER
from elastic_checkpoint import linux
from elastic_checkpoint.save.writer import WRITER_MODULE

WRITER = WRITER_MODULE.encode()  # of a worker's checkpoints, once it is warm
MARK = "ELASTIC_DRILL"  # set to the drill's folder for everything that the drill starts


def pid_in(worker: str) -> int:
    """Return the process id in a worker's id, as its own machine counts."""
    return int(worker.rsplit("-", 2)[1])


def marked(folder: Path) -> list[int]:
    """Return the pids of the drill in `folder` that still run (zombies do not), this process excepted."""
    mark = f"{MARK}={folder}".encode()
    own = str(os.getpid())
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdigit() and pid != own:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb", buffering=0) as environ:
                if mark in (shown := environ.read()) and mark in shown.split(b"\0"):  # it has not ended meanwhile
                    found.append(int(pid))
    return found


def kill_marked(folder: Path) -> list[int]:
    """Kill the drill's processes, stopped first, so that none sees another's death. Return their pids."""
    stopped: set[int] = set()
    while new := set(marked(folder)) - stopped:  # what was forked before its parent stopped
        for pid in new:
            linux.send_signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        linux.send_signal(pid, signal.SIGKILL)
    return sorted(stopped)


def wait_until_gone(folder: Path, *, within_s: float) -> list[int]:
    """Wait until no process of the drill is left; return the pids of those that are there at the deadline."""
    deadline = time.monotonic() + within_s
    while (alive := marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def describe(pid: int) -> str:
    """Return one line on a process: its pid, state, command and the ports on which it listens."""
    if (stat := linux.process_stat(pid)) is None:
        return f"{pid} (ended)"
    command = linux.command_line(pid).replace(b"\0", b" ").decode(errors="replace").strip()
    ports = listening(pid)
    return f"{pid} state {stat.state}: {command[:160]}" + (f" listens on {', '.join(map(str, ports))}" if ports else "")


def listening(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    sockets = set(linux.descriptors(pid).values())
    ports = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # 0A is LISTEN
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def children(parent: int) -> list[int]:
    """Return the pids of a process's children that have not ended."""
    return sorted(pid for pid, stat in linux.children(parent).items() if not stat.is_dead)


def loader_processes() -> list[int]:
    """Return the pids of this worker's loader processes: children with its own command line."""
    own = linux.command_line(os.getpid())
    return [pid for pid in children(os.getpid()) if linux.command_line(pid) == own]


def writer_processes() -> list[int]:
    """Return the pids of the processes that write this worker's checkpoints."""
    return [pid for pid in children(os.getpid()) if WRITER in linux.command_line(pid)]


def fork_servers() -> list[int]:
    """Return the pids of the processes that this worker's agent forks workers from."""
    found = linux.children(os.getppid()).items()
    return [pid for pid, stat in found if not stat.is_dead and stat.name == FORK_SERVER]

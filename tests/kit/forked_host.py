"""Makes this process, a fork that forkserver_process.py made, a host's machine, as unshare(1) and nsenter(1) do.

    this process            in the host's network; the kernel kills the machine with it
      └ its init            process 1 of a namespace of its own: elastic/drill/hosts/machine.py
          └ the command     returns from enter(), to become the program

Promises  it is what `Hosts.boot` of elastic/drill/hosts/hosts.py starts with these programs, for whoever watches it.
Leaves    which commands may be forked to forkserver.py and hosts.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from elastic.drill.environment import DRILL_NODE
from elastic.drill.hosts.hosts import BOOT
from elastic.drill.hosts.machine import watch

_PR_SET_PDEATHSIG = 1
_NEWNET = 0x40000000  # this and those below: see clone(2)
_ITS_OWN = 0x00000080 | 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000  # CLONE_NEWTIME, NS, UTS, IPC, PID
_OWN_MOUNTS = "mount --make-rprivate / && mount -t proc proc /proc"
_WITHIN_S = 30.0
_libc = ctypes.CDLL(None, use_errno=True)


def enter(machine: dict[str, Any]) -> None:
    """Returns in the machine's command. machine: "network", a namespace's file, and what Hosts.boot() knows"""
    _call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    with open(machine["network"]) as network:
        _call(_libc.setns(network.fileno(), _NEWNET))
    _call(_libc.unshare(_ITS_OWN))
    booted_s = machine["booted_s"]
    Path("/proc/self/timens_offsets").write_text(f"monotonic {booted_s} 0\nboottime {booted_s} 0\n")
    os.environ[DRILL_NODE] = str(os.getpid())
    init = os.fork()
    if init != 0:
        _end_as(init)
    _call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    boot = ["sh", "-c", f"{_OWN_MOUNTS}\n{BOOT}", "boot", machine["names"], machine["name"], "true"]
    subprocess.run(boot, check=True, timeout=_WITHIN_S)
    command = os.fork()
    if command == 0:
        os.setsid()
        return
    watch(command, Path(machine["report"]), machine["orphans_s"])
    sys.stdout.flush()
    os._exit(0)


def _end_as(init: int) -> NoReturn:
    _, ended = os.waitpid(init, 0)
    status = os.waitstatus_to_exitcode(ended)
    os._exit(status if status >= 0 else 128 - status)


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

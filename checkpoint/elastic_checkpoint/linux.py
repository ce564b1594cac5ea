"""What Linux alone knows and does: processes as /proc shows them, signals at another process's end, mounts.

Where there is no /proc, nothing is known of any process. Imports nothing that takes time: a worker starts with it.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_PROC = Path("/proc")
_DEAD = "ZX"
_FLAGS, _EXIT_CODE = 9 - 3, 52 - 3  # among what follows the name in /proc/PID/stat, see proc_pid_stat(5)
_PF_EXITING = 0x4


class ProcessStat(NamedTuple):
    """What the kernel says of a process.

    state: one letter, "Z" a zombie   started: in the kernel's ticks since the boot   name: as `top` shows it
    """

    state: str
    parent: int
    started: int
    name: str

    @property
    def is_dead(self) -> bool:
        return self.state in _DEAD


def process_stat(pid: int | str, proc: Path = _PROC) -> ProcessStat | None:
    """Return what /proc says of a process; None: there is no such process."""
    try:
        with open(proc / str(pid) / "stat", "rb") as file:
            before, _, after = file.read().rpartition(b")")  # the name, in brackets, may hold anything
        name, fields = before.partition(b"(")[2].decode(errors="replace"), after.split()
        return ProcessStat(fields[0].decode(), int(fields[1]), int(fields[19]), name)
    except (OSError, IndexError):  # it may end while it is read
        return None


def exit_status(pid: int) -> int | None:
    """Return the status, as waitpid(2) gives it, of a process whose end has begun; it may take long to be taken apart.

    None: it has not begun, or this process may not know.
    """
    try:
        with open(_PROC / str(pid) / "stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[_EXIT_CODE]) if int(fields[_FLAGS]) & _PF_EXITING else None
    except (OSError, IndexError, ValueError):
        return None


def peak_bytes(pid: int) -> int | None:
    """Return the most memory that it has had so far; None: it has none any more, or /proc does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def data_bytes() -> int:
    """Return the memory that this process has asked for, as RLIMIT_DATA counts it, and its stack; 0: nobody says."""
    with suppress(OSError, IndexError, ValueError):
        return int((_PROC / "self" / "statm").read_text().split()[5]) * os.sysconf("SC_PAGESIZE")
    return 0


def held_up_s(pid: int) -> float:
    """Return how long, since it began, others had the processor while its first thread could run; 0: not counted."""
    try:
        with open(_PROC / str(pid) / "schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def children(*parents: int) -> dict[int, ProcessStat]:
    """Return the children of any of them, by process id; those that ended and wait to be reaped, too."""
    found = {}
    for name in os.listdir(_PROC):
        if name.isdigit() and (stat := process_stat(name)) is not None and stat.parent in parents:
            found[int(name)] = stat
    return found


def command_line(pid: int) -> bytes:
    """Return its arguments, with a NUL after each; empty: there is no such process, or it has ended."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """Return number -> what it leads to (a path, "socket:[123]", "pipe:[456]"), complete before any is handled."""
    folder, found = f"{_PROC}/{pid}/fd", {}
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):  # the listing's own
                found[int(name)] = os.readlink(f"{folder}/{name}")
    return found


def keep_only(*fds: int) -> None:
    """Close all of this process's descriptors but these and the standard streams; nothing is read from stdin."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number in descriptors():
        if number > 2 and number not in fds:
            with suppress(OSError):
                os.close(number)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def caught_signals() -> set[int]:
    """Return the signals for which this process has a handler, whoever has put it there; empty where nobody says."""
    with suppress(OSError, ValueError):
        status = (_PROC / "self" / "status").read_text()
        mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        return {number + 1 for number in range(64) if int(mask, 16) >> number & 1}
    return set()


def first_ephemeral_port() -> int:
    """Return the first of the ports that the kernel gives to whoever asks for any."""
    return int((_PROC / "sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def thread_count(pid: int | str = "self") -> int:
    return len(os.listdir(_PROC / str(pid) / "task"))


def signal_at_parents_end(number: int) -> None:
    """Have the kernel send this process that signal when the *thread* that started it ends; 0: none any more.

    Whose parent has ended already gets none: look at os.getppid() afterwards. Elsewhere than on Linux nothing happens.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def open_standard_streams() -> None:
    """Have the streams that the caller has closed (`2>&-`) lead to nothing from now on.

    Else the next file or socket would have the number of one of them, and be sent what is printed. Before anything is
    opened.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # which gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def has_terminal() -> bool:
    """Return whether this process has a terminal whose keys send signals."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def lead_group() -> None:
    """Make this process, just forked, lead a group of its own, which a terminal's Ctrl-C does not reach.

    Where there is no terminal it stays in its parent's session: the kernel then wakes it, by SIGHUP and SIGCONT, if it
    is stopped as its parent ends (setpgid(2) and _exit(2), of newly orphaned groups). Nothing else would, and a signal
    asked for by `signal_at_parents_end` would not be heard. With a terminal it has a session of its own: a group beside
    the terminal's is stopped by asking it anything.
    """
    if has_terminal():
        os.setsid()
    else:
        os.setpgid(0, 0)


def leading_group() -> dict[str, Any]:
    """Return the same for a program, as arguments of subprocess.Popen, which cannot do it before Python 3.11."""
    in_session = sys.version_info >= (3, 11) and not has_terminal()
    return {"process_group": 0} if in_session else {"start_new_session": True}


def name_process(name: str) -> None:
    """Set the name by which `top` and `ps -o comm` show this process from now on; 15 characters. Forks inherit it."""
    _prctl(_PR_SET_NAME, name.encode())


def adopt_orphans() -> None:
    """Make what descendants of this process leave behind its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


class Mount(NamedTuple):
    """A mounted filesystem.

    device  "major:minor"   folder  where it is   kind  of filesystem   source  what is mounted, by its own name
    """

    device: str
    folder: str
    kind: str
    source: str


def mounts() -> list[Mount]:
    """Return all mounts that this process sees. Raises OSError where there is no /proc."""
    found = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines():
        before, _, after = line.partition(" - ")
        _, _, device, _, folder, *_ = before.split()
        kind, source, *_ = after.split()
        found.append(Mount(device, re.sub(r"\\([0-7]{3})", _character, folder), kind, source))
    return found


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))

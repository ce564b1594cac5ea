"""The init of a host's machine (hosts.py): runs one command, passes SIGTERM on, and says what was left behind.

    python machine.py REPORT SECONDS COMMAND…: a file REPORT with the command's status, and the processes, shared memory
    and temporary files that it left

What the command has started and not ended so many seconds after it is killed with this process: it is process 1 of its
namespace.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_LEFT_IN = ("/dev/shm", "/var/tmp")  # both of this machine alone


def main() -> None:
    """Start the command in a session of its own, and watch it to its end."""
    command = sys.argv[3:]
    watch(os.posix_spawnp(command[0], command, os.environ, setsid=True), Path(sys.argv[1]), float(sys.argv[2]))


def watch(child: int, report: Path, orphans_s: float) -> None:
    """Wait for the command's end and then for its orphans; write its status and what it left. child: its pid."""

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    status = None
    while status is None:
        pid, ended = os.wait()  # an orphan, or the command
        status = os.waitstatus_to_exitcode(ended) if pid == child else None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + orphans_s
    while (left_behind := _others()) and time.monotonic() < deadline:
        time.sleep(0.02)
    left_behind += [f"{folder}/{name}" for folder in _LEFT_IN for name in sorted(os.listdir(folder))]
    coming = report.with_suffix(".coming")
    coming.write_text(json.dumps({"status": status, "left_behind": left_behind}))
    coming.rename(report)


def _others() -> list[str]:
    """Reap who has ended, and return who still runs beside this process, in words."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            with suppress(OSError):
                found.append(f"process {pid}: {Path('/proc', pid, 'cmdline').read_bytes().replace(bytes(1), b' ')!r}")
    return found


if __name__ == "__main__":
    main()

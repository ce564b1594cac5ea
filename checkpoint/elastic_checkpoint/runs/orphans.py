"""Writer processes of this machine whose parents are gone, and which still finish what was staged.

Whoever is about to claim the same URL waits for them: a claim taken meanwhile would make what they write no part of its
lineage, and the run would go back to an older commit. Each writer process holds a name in the kernel's abstract
namespace (no file, gone with the process) that says which URL it writes to and whose child it is.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from elastic_checkpoint.net.machine import pid_namespace, started_at

ORPHANS_S = 120.0  # a claim waits no longer
_POLL_S = 0.05
_SAID_AFTER_S = 1.0


def announce(url: str, parent: int) -> socket.socket | None:
    """Hold the name of this writer process until the socket is closed. None where there are no such names."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0{_prefix(url)}{parent}-{os.getpid()}")
    except OSError:
        held.close()
        return None
    return held


def wait_for_orphans(url: str, *, within_s: float, log: Callable[[str], None]) -> None:
    """Wait until none writes to `url` (without credentials) any more, or after `within_s`; says so if it waits."""
    began_s = time.monotonic()
    said = False
    while found := orphans(url):
        waited_s = time.monotonic() - began_s
        if waited_s > within_s:
            log(f"process {found[0]} did not finish a save within {within_s:g} s; this run goes on without that save")
            return
        if not said and waited_s > _SAID_AFTER_S:
            log(f"waiting up to {within_s:g} s for process {found[0]} to finish the save of a process that is gone")
            said = True
        time.sleep(_POLL_S)


def orphans(url: str) -> list[int]:
    """Return the ids of writer processes to `url` whose parents have ended."""
    try:
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    except (OSError, IndexError):
        return []
    found = []
    for name in names:
        if name.startswith(f"@{_prefix(url)}"):
            parent, _, pid = name.removeprefix(f"@{_prefix(url)}").partition("-")
            if parent.isdigit() and pid.isdigit() and started_at(int(parent)) is None:
                found.append(int(pid))
    return found


def _prefix(url: str) -> str:
    """Return how names begin: they are shared by all of a network namespace, process numbers by a pid namespace."""
    digest = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return f"checkpoint-writer-{pid_namespace()}-{digest}-"

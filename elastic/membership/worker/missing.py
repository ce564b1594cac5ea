"""Who of a view is gone? What this machine can prove about the workers that run on it.

A collective's error names an address at best. A worker id holds the host and the process id, so each
survivor can look at the processes beside it; of workers on other machines it can only say that it knows
nothing.
"""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from elastic.membership.view import View
from elastic_checkpoint.linux import process_stat

_STATES = {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped by a debugger"}


def seen_missing(view: View, *, within_s: float = 0.3) -> dict[int, str]:
    """Return `missing` once someone is, or after `within_s`."""
    deadline = time.monotonic() + within_s
    # a killed process closes its connections a moment before it counts as dead
    while not (found := missing(view)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def missing(view: View, *, host: str | None = None, proc: Path = Path("/proc")) -> dict[int, str]:
    """Return rank -> what is wrong ("dead", "stopped") for workers on this host; the healthy ones are left out."""
    here = host or socket.gethostname()
    found: dict[int, str] = {}
    for rank, worker_id in enumerate(view.workers):
        where, pid, _ = worker_id.rsplit("-", 2)
        if where == here and (state := _state(pid, proc)) is not None:
            found[rank] = state
    return found


def sentence(view: View, found: dict[int, str], own_rank: int) -> str:
    """Return for an error who is missing, or where to look."""
    if found:
        return ", ".join(f"rank {rank} ({view.workers[rank]}) is {state}" for rank, state in found.items())
    hosts = sorted({worker.rsplit("-", 2)[0] for rank, worker in enumerate(view.workers) if rank != own_rank})
    return f"nobody on this machine is known to be dead; look at the logs of {', '.join(hosts)}"


def ranks_named_by_torch(message: str) -> list[int]:
    """Return the ranks that did not come, by what torch says."""
    # rank 0's monitored barrier names them all, a store's key the first
    named = re.search(r"Ranks ([\d, ]+) failed", message) or re.search(r"keys: \S*/(\d+)", message)
    return [int(rank) for rank in re.findall(r"\d+", named[1])] if named else []


def _state(pid: str, proc: Path) -> str | None:
    """Return what is wrong with a process; None if nothing is, or if there is no /proc to ask."""
    if not (proc / "self").exists():
        return None
    stat = process_stat(pid, proc)
    return _STATES.get(stat.state) if stat is not None else "dead"

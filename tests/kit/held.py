"""What does a run that is held still hold of the machine, and is that more than before? Linux: reads /proc."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

from elastic.drill.cluster import Cluster
from elastic.drill.machine import holdings
from elastic.drill.machine.holdings import OF_A_GROUP
from elastic.drill.machine.leftovers import pid_in_name
from elastic.drill.machine.processes import WRITER, marked

OF_A_WRITER = {"writers": 1, "processes": 1, **holdings.OF_A_WRITER}
SETTLED_S, UNCHANGED_S = 15.0, 2.5  # an agent forks its next spare a second after the last start


def beyond(before: dict[str, int], after: dict[str, int], groups: int = 0) -> list[str]:
    """What the run holds more of than it should. groups: those that gloo may still hold (collectives_given_up)"""
    found = []
    for what in before:
        kind, _, who = what.partition(" of the ")
        kept = groups * OF_A_GROUP if kind in ("threads", "descriptors", "sockets") else 0
        writer = OF_A_WRITER.get(kind, 0) if who != "agent" and after["writers"] > before["writers"] else 0
        if after[what] > before[what] + kept + writer:
            found.append(what)
    return found


def settled(run: Cluster, *, at_most: dict[str, int] | None = None) -> dict[str, int]:
    """What the held run holds of the machine, once that is no more than `at_most`, or has not changed for a while."""
    deadline = time.monotonic() + SETTLED_S
    found, since_s = held(run), time.monotonic()
    while time.monotonic() < deadline:
        if at_most is not None and not beyond(at_most, found):
            break
        if at_most is None and time.monotonic() - since_s > UNCHANGED_S:
            break
        time.sleep(0.1)
        if (now := held(run)) != found:
            found, since_s = now, time.monotonic()
    return found


def held(run: Cluster) -> dict[str, int]:
    """Of the coordinator, of its node's agent, and of the whole drill."""
    newest = [event for event in run.events() if event["event"] == "view_formed"][-1]
    coordinator, agents = int(newest["workers"][0].rsplit("-", 2)[1]), run.pids()
    agent = next(parent.pid for parent in psutil.Process(coordinator).parents() if parent.pid in agents)
    pids = {"coordinator": coordinator, "agent": agent}
    running = marked(run.folder)
    found = {
        "processes": len(running),
        "shared memory": sum(_may_be_of(running, name) for name in os.listdir("/dev/shm")),
    }
    found["writers"] = 0
    for pid in running:
        with contextlib.suppress(OSError):  # it has ended
            found["writers"] += WRITER in Path(f"/proc/{pid}/cmdline").read_bytes()
    for who, pid in pids.items():
        descriptors = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        found[f"descriptors of the {who}"] = len(descriptors)
        found[f"sockets of the {who}"] = sum(link.startswith("socket:") for link in descriptors)
        found[f"threads of the {who}"] = len(os.listdir(f"/proc/{pid}/task"))
    return found


def _may_be_of(running: list[int], name: str) -> bool:
    """Whether a file in shared memory names one of these, or a process that has ended."""
    pid = pid_in_name(name)
    return pid is not None and (pid in running or not Path(f"/proc/{pid}").exists())

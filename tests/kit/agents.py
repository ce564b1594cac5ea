"""Scripts under `elastic run` that know nothing of elastic: what they say, and how several nodes are told to meet."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

from tests.kit.launch import Launch

WITHIN_S = 240.0

HERE = """
import os, sys, time
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
say("here", os.environ["LOCAL_RANK"], os.getpid(), os.environ["ELASTIC_RESTART"])
"""

STAY = HERE + "time.sleep(600)\n"

Run = Callable[..., Launch]


class Here:
    """Workers say that they are here, with their local rank, pid and how often their place was started before."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def all(self) -> list[tuple[int, int, int]]:
        found = re.findall(r"^(?:\[.*?\]:)?here (\d+) (\d+) (\d+)$", self.launch.output, re.M)
        return [(int(rank), int(pid), int(restart)) for rank, pid, restart in found]

    def wait(self, count: int) -> list[tuple[int, int, int]]:
        self.launch.wait_for(lambda: len(self.all()) >= count, f"{count} workers", within_s=WITHIN_S)
        return self.all()


def meet(nodes: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=meeting"]


def says(launch: Launch, what: str) -> None:
    launch.wait_for(lambda: what in launch.output, what, within_s=WITHIN_S)

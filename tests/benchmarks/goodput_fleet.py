"""Nodes of one worker each that come and go on this machine, as a trace says. Nothing of them outlives `fleet`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch.distributed import TCPStore

from elastic.drill.machine.processes import MARK, kill_marked, marked, wait_until_gone
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.benchmarks.recovery_runs import ROOT, Stuck

How = Literal["ours", "plain"]
NODES = 4
_SCRIPT = Path(__file__).with_name("goodput_script.py")
_READY = {"ours": "elastic.drill.inject.latecomer", "plain": "tests.benchmarks.goodput_node"}
_START_S, _END_S, _LOOK_S = 120.0, 30.0, 0.02
_TUNED = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4"


@dataclass(frozen=True)
class Note:
    """steps: applied by then"""

    t: float
    steps: int
    world_size: int


class Fleet:
    """What `fleet` gives. The store that nodes meet at is this process's: plain torchrun's jobs die with the one that
    hosts it."""

    def __init__(self, how: How, folder: Path, *, away_s: float, save_s: float) -> None:
        self._how = how
        self._folder = folder
        self._script = [str(_SCRIPT), how, str(folder), f"--away={away_s}", f"--save-every={save_s}"]
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._secret = generated_secret()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: list[subprocess.Popen[bytes]] = []
        self._ready = 0

    def stand_ready(self, name: str) -> None:
        """Starts a node, up to its imports."""
        mark = self._mark(name)
        (mark / "tmp").mkdir(parents=True)
        flags = ["--nnodes=1:4", "--nproc-per-node=1", "--rdzv-backend=c10d", "--max-restarts=1000000"]
        flags += [f"--rdzv-endpoint=127.0.0.1:{self._store.port}", "--rdzv-id=goodput", "--local-addr=127.0.0.1"]
        flags += [f"--rdzv-conf={_TUNED if self._how == 'plain' else 'is_host=0'}"]
        flags += ["--monitor-interval=0.1"] if self._how == "plain" else []
        environ = {
            **os.environ,
            VARIABLE: self._secret,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(mark / "tmp"),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            MARK: str(mark),
        }
        with (self._folder / "log").open("ab") as log:
            self._nodes[name] = subprocess.Popen(
                [sys.executable, "-m", _READY[self._how], str(mark / "called"), *flags, *self._script],
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def call(self, name: str) -> float:
        """It joins from now on; the time."""
        (self._mark(name) / "called").touch()
        return time.time()

    def lose(self, name: str) -> float:
        """SIGKILL to all of its processes; the time just before."""
        t = time.time()
        kill_marked(self._mark(name))
        self._ended.append(self._nodes.pop(name))
        return t

    def notes(self) -> list[Note]:
        path = self._folder / "steps"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [Note(*json.loads(line)) for line in lines]

    def wait(self, world_size: int, *, steps: int, after_t: float) -> list[Note]:
        """Until so many workers have applied so many steps since. Raises Stuck."""
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            found = [note for note in self.notes() if note.t > after_t and note.world_size == world_size]
            if len(found) >= steps:
                return found
            time.sleep(_LOOK_S)
        log = (self._folder / "log").read_text(errors="replace")[-6000:]
        raise Stuck(f"{self._how}: {world_size} workers had not done {steps} steps after {_START_S:.0f} s\n{log}")

    def close(self) -> None:
        for name in [*self._nodes]:
            kill_marked(self._mark(name))
            wait_until_gone(self._mark(name), within_s=_END_S)
            self._ended.append(self._nodes.pop(name))
        for process in self._ended:
            process.wait(_END_S)
        left = [pid for mark in self._folder.glob("node-*") for pid in marked(mark)]
        assert not left, f"left behind: {left}"

    def _mark(self, name: str) -> Path:
        return self._folder / f"node-{name}"


@contextmanager
def fleet(how: How, begin: Sequence[str], *, away_s: float, save_s: float) -> Iterator[tuple[Fleet, float]]:
    """These nodes, training together, and since when."""
    with tempfile.TemporaryDirectory(prefix="goodput-") as name:
        made = Fleet(how, Path(name), away_s=away_s, save_s=save_s)
        try:
            for node in begin:
                made.stand_ready(node)
                made.call(node)
            yield made, made.wait(len(begin), steps=5, after_t=0.0)[-1].t
        finally:
            made.close()

"""How many bytes leave a host in a step? Those of programs/wide.py, by the counters of the hosts' interfaces."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.drill.hosts.network import name
from tests.kit.hosts import Hosts

ROOT = Path(__file__).parents[2]
WITHIN_S = 240.0
_PORT = 29400
_LAUNCHERS = {"elastic": ("elastic", "run"), "torchrun": ("torch.distributed.run",)}


@dataclass(frozen=True)
class Crossing:
    """
    bytes    that left each host in a step, the mean
    weights  of the network, or of its gradients, in bytes
    seconds  of a step, the median of each worker's; the mean
    digest   of the weights at the end; the same on all workers
    """

    bytes: tuple[float, ...]
    weights: int
    seconds: float
    digest: str

    @property
    def most(self) -> float:
        """Of the host that sends most, in sizes of the gradients."""
        return max(self.bytes) / self.weights


def crossing(
    hosts: Hosts, count: int, folder: Path, *flags: str, launcher: str = "elastic", workers: int = 2
) -> Crossing:
    """Of the first `count` hosts, which run nothing. flags: of the program   workers: on each host"""
    folder.mkdir(parents=True)
    meet = [f"--nnodes={count}", "--rdzv-backend=c10d", f"--rdzv-endpoint={name(1)}:{_PORT}", "--rdzv-id=crossing"]
    launch = [sys.executable, "-m", *_LAUNCHERS[launcher], *meet, f"--nproc-per-node={workers}"]
    command = [*launch, "-m", "tests.kit.programs.wide", *flags]
    command += [str(folder / "run")] if launcher == "elastic" else []
    env = {
        "TMPDIR": "/var/tmp",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    outputs = [folder / f"output-{name(host)}.txt" for host in range(1, count + 1)]
    for host, output in enumerate(outputs, start=1):
        hosts.start(host, command, env=env, output=output, cwd=ROOT)
    deadline = time.monotonic() + WITHIN_S
    while any(hosts.running(host) for host in range(1, count + 1)):
        assert time.monotonic() < deadline, _told(outputs)
        time.sleep(0.1)
    said = [_said(output) for output in outputs]
    assert all(len(of) == workers for of in said), _told(outputs)
    digests = {one["digest"] for of in said for one in of}
    assert len(digests) == 1, _told(outputs)
    sent = tuple(sum(one["bytes"] for one in of) / workers for of in said)
    seconds = sum(one["seconds"] for of in said for one in of) / (count * workers)
    return Crossing(sent, said[0][0]["weights"], seconds, digests.pop())


def _said(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text(errors="replace").splitlines() if line.startswith('{"bytes"')]


def _told(outputs: Sequence[Path]) -> str:
    return "\n".join(f"{output}:\n{output.read_text(errors='replace')[-3000:]}" for output in outputs)

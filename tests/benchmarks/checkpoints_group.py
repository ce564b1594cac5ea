"""What it costs a group of ranks to compare what they hold alike before they save it.

    python -m tests.benchmarks.checkpoints_group --ranks 2 --mb 512

All ranks hold one replicated state. Saves with blocking=False by two checkpointers take turns, one that compares and
one that trusts; the figure is the time in the call on rank 0, which is what training stands still for. Beside it: a
hash of the whole state by one rank while all do so, and a copy of one rank's share between warm arrays. Ctrl-C ends it
after the round, with the figures so far.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from elastic_checkpoint import Checkpointer
from elastic_checkpoint.save.group import replicas
from tests.benchmarks import harness
from tests.benchmarks.checkpoints import build
from tests.benchmarks.harness import interruptible, progress

PATIENCE_S = 600.0


def in_rank(rank: int, asked: Any, folder: str, interrupted: Event) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=asked.ranks)
    torch.manual_seed(0)
    state = build(asked.mb, asked.tensors)
    tensors: dict[str, torch.Tensor] = state["model"]
    share = sum(tensor.nbytes for tensor in tensors.values()) // asked.ranks
    source, target = np.ones(share, np.uint8), np.ones(share, np.uint8)
    ways = {way: Checkpointer(f"{folder}/{way}", group="auto", keep=2, replicas=way) for way in ("compared", "trusted")}
    seconds: dict[str, list[float]] = {name: [] for name in (*ways, "hash of all", "copy of a share")}
    rounds = range(asked.rounds + 1)  # of which the first does not count
    for step in progress("rounds", rounds) if rank == 0 else rounds:
        if _any(interrupted.is_set()):
            break
        for way, runs in ways.items():
            dist.barrier()
            begun_s = time.perf_counter()
            saving = runs.save(step, state, blocking=False)
            seconds[way].append(time.perf_counter() - begun_s)
            saving.wait(PATIENCE_S)
        dist.barrier()
        begun_s = time.perf_counter()
        replicas.digest(tensors)
        seconds["hash of all"].append(time.perf_counter() - begun_s)
        dist.barrier()
        begun_s = time.perf_counter()
        np.copyto(target, source)
        seconds["copy of a share"].append(time.perf_counter() - begun_s)
    for runs in ways.values():
        runs.close()
    if rank == 0:
        _print(asked, seconds)
    dist.destroy_process_group()


def _any(interrupted: bool) -> bool:
    heard = torch.tensor(int(interrupted))
    dist.all_reduce(heard)
    return bool(heard)


def _print(asked: Any, seconds: dict[str, list[float]]) -> None:
    rounds = len(seconds["hash of all"][1:])
    print(f"{asked.ranks} ranks, {asked.mb} MiB in {asked.tensors} tensors, medians of {rounds}")
    for name, values in seconds.items():
        print(f"{name:16} " + (f"{statistics.median(values[1:]) * 1000:8.1f} ms" if rounds else "       – ms"))
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--tensors", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        interrupted = mp.get_context("spawn").Event()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # by ranks: all stop after the same round
        ranks = mp.spawn(in_rank, (options, folder, interrupted), nprocs=options.ranks, join=False)  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGINT, before)
        with interruptible():
            while not ranks.join(PATIENCE_S):
                pass
        interrupted.set()
        while not ranks.join(PATIENCE_S):
            pass


if __name__ == "__main__":
    harness.run(main)

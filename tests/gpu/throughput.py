"""Steps of Run beside those of a plain loop, in turns in one process, on one GPU: python -m tests.gpu.throughput [cpu]

The GPT of the benchmarks, batches of 64 texts, V = 8. Prints medians of paired ratios, above 1 where Run is faster.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import torch

import elastic
from tests.benchmarks.workloads import VIRTUAL_WORKERS, Workload, workloads

BATCH, BLOCK, PAIRS, WARM_UP = 64, 5, 12, 3


def plain(workload: Workload, device: torch.device, pieces: int) -> Iterator[None]:
    elastic.seed(0)
    model = workload.make().to(device)
    optimizer = workload.optimizer(model)
    inputs, targets = (tensor.to(device) for tensor in workload.data.tensors)
    scale = BATCH * workload.per_example
    at = 0
    while True:
        optimizer.zero_grad()
        for piece in range(pieces):
            chosen = slice(at + piece * BATCH // pieces, at + (piece + 1) * BATCH // pieces)
            torch.autograd.backward(workload.loss(model, inputs[chosen], targets[chosen]) / scale)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        at = (at + BATCH) % (len(inputs) - BATCH)
        yield


def elastic_steps(workload: Workload, device: torch.device, mode: str) -> Iterator[None]:
    elastic.seed(0)
    model = workload.make().to(device)
    with (
        tempfile.TemporaryDirectory() as folder,
        elastic.Run(
            folder,
            model=model,
            optimizer=workload.optimizer(model),
            dataset=workload.data,
            batch_size=BATCH,
            virtual_workers=VIRTUAL_WORKERS,
            steps=10**9,
            clip_grad_norm=1.0,
            save_every=10**9,
            mode="exact" if mode == "exact" else "fast",
            device=device,
        ) as run,
    ):
        for step in run:
            for inputs, targets in step:
                step.backward(workload.loss(model, inputs, targets), count=targets.numel())
            yield


def block_s(steps: Iterator[None], wait: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    for _ in range(BLOCK):
        next(steps)
    wait()
    return time.perf_counter() - begun_s


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    workload = workloads()["gpt"]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for mode, pieces in (("exact", VIRTUAL_WORKERS), ("exact", 1), ("fast", 1)):
        ours, theirs = elastic_steps(workload, device, mode), plain(workload, device, pieces)
        ratios = [block_s(theirs, wait) / block_s(ours, wait) for _ in range(PAIRS + WARM_UP)][WARM_UP:]
        low, middle, high = statistics.quantiles(ratios, n=4)
        loop = "the whole batch at once" if pieces == 1 else f"{pieces} backward passes"
        print(f"mode={mode!r} beside a plain loop, {loop}: {middle:.2f} ({low:.2f} … {high:.2f})", flush=True)
        ours.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()

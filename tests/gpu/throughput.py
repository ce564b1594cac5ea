"""Steps of Run beside those of a plain loop, in turns in one process, on one GPU: python -m tests.gpu.throughput [cpu]

small   the character GPT of the benchmarks, 10.6 M parameters, 64 texts: kernels so short that the host decides
large   a GPT of 124 M parameters, 32 texts of 1,024 tokens, bfloat16 autocast: the GPU decides

V = 8. The plain loop reads with torch's DataLoader, from pinned memory; in as many backward passes as Run has shares it
accumulates what Run sums. Prints medians of paired ratios, above 1 where Run is faster, with quartiles.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import elastic
from elastic.state.gpu_kernels import deterministic
from tests.benchmarks.workloads import VIRTUAL_WORKERS, workloads

PAIRS, WARM_UP = 10, 2


@dataclass(frozen=True, kw_only=True)
class Workload:
    """block: steps that are timed as one"""

    make: Callable[[], nn.Module]
    data: Dataset[tuple[torch.Tensor, ...]]
    batch_size: int
    block: int
    autocast: bool

    def loss(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            scores = model(inputs)
        return F.cross_entropy(scores.flatten(0, -2).float(), targets.flatten(), reduction="sum")

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.think(self.norm_2(x))
        return result


class Gpt(nn.Module):
    """As large as the smallest GPT-2: (batch, time) tokens to (batch, time, tokens) scores."""

    def __init__(self, tokens: int = 50_304, context: int = 1024, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, 12) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        scores: torch.Tensor = self.head(self.norm(self.layers(x)))
        return scores


def small() -> Workload:
    gpt = workloads()["gpt"]
    return Workload(make=gpt.make, data=gpt.data, batch_size=64, block=5, autocast=False)


def large() -> Workload:
    text = torch.randint(50_257, (1024, 1025), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())
    return Workload(make=Gpt, data=data, batch_size=32, block=2, autocast=True)


def batches(workload: Workload, device: torch.device, pieces: int) -> Iterator[list[torch.Tensor]]:
    data: Any = workload.data
    loader = DataLoader(
        data,
        workload.batch_size // pieces,
        sampler=RandomSampler(data, num_samples=10**9, replacement=True),
        pin_memory=device.type == "cuda",
    )
    for batch in loader:
        yield [tensor.to(device, non_blocking=True) for tensor in batch]


def plain(workload: Workload, device: torch.device, pieces: int) -> Iterator[None]:
    elastic.seed(0)
    model = workload.make().to(device)
    optimizer = workload.optimizer(model)
    read = batches(workload, device, pieces)
    while True:
        optimizer.zero_grad()
        for _ in range(pieces):
            inputs, targets = next(read)
            torch.autograd.backward(workload.loss(model, inputs, targets) / (targets.numel() * pieces))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        # Without torch's hooks: by one an open Run refuses optimizers that step in its loop and are none of its own.
        type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
        yield


def of_run(workload: Workload, device: torch.device, mode: str) -> Iterator[None]:
    elastic.seed(0)
    model = workload.make().to(device)
    with (
        tempfile.TemporaryDirectory() as folder,
        elastic.Run(
            folder,
            model=model,
            optimizer=workload.optimizer(model),
            dataset=workload.data,
            batch_size=workload.batch_size,
            virtual_workers=VIRTUAL_WORKERS,
            steps=10**9,
            update=elastic.Update(clip_grad_norm=1.0),
            save_every=10**9,
            compute=elastic.Compute(mode="exact" if mode == "exact" else "fast", device=device),
        ) as run,
    ):
        for step in run:
            for inputs, targets in step:
                step.backward(workload.loss(model, inputs, targets), count=targets.numel())
            yield


def block_s(workload: Workload, steps: Iterator[None], wait: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    for _ in range(workload.block):
        next(steps)
    wait()
    return time.perf_counter() - begun_s


def compare(name: str, workload: Workload, device: torch.device) -> None:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for mode, pieces in (("exact", VIRTUAL_WORKERS), ("exact", 1), ("fast", 1)):
        ours, theirs = of_run(workload, device, mode), plain(workload, device, pieces)
        pairs = [(block_s(workload, theirs, wait), block_s(workload, ours, wait)) for _ in range(PAIRS + WARM_UP)]
        low, middle, high = statistics.quantiles([a / b for a, b in pairs[WARM_UP:]], n=4)
        took_ms = statistics.median(b for _, b in pairs[WARM_UP:]) / workload.block * 1e3
        loop = "the whole batch at once" if pieces == 1 else f"{pieces} backward passes"
        ratio = f"{middle:.2f} ({low:.2f} … {high:.2f})"
        print(f"{name}, mode={mode!r} beside a plain loop, {loop}: {ratio}, {took_ms:.1f} ms a step", flush=True)
        ours.close()  # type: ignore[attr-defined]
        theirs.close()  # type: ignore[attr-defined]


def kernels(workload: Workload, device: torch.device) -> None:
    """What deterministic kernels cost a plain loop."""
    chosen = plain(workload, device, 1)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    ratios = []
    for _ in range(PAIRS + WARM_UP):
        fastest_s = block_s(workload, chosen, wait)
        with deterministic():
            ratios.append(fastest_s / block_s(workload, chosen, wait))
    low, middle, high = statistics.quantiles(ratios[WARM_UP:], n=4)
    print(f"deterministic kernels in a plain loop: {middle:.2f} ({low:.2f} … {high:.2f})", flush=True)


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    compare("small", small(), device)
    if device.type == "cuda":
        compare("large", large(), device)
        kernels(large(), device)


if __name__ == "__main__":
    main()

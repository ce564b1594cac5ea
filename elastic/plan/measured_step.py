"""Times steps of this process and its all-reduces while the others of a measurement do the same; and a model for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_WITHIN = timedelta(seconds=60)
_PASSES, _ALL_REDUCES = 7, 9
_SMALL, _LARGE = 256, 8 << 20  # floats
_WIDTH, _BATCH = 512, 256


def measured(
    model: Any, loss: Callable[[], torch.Tensor], *, rank: int, world_size: int, rendezvous: str
) -> dict[str, float]:
    """Measure seconds and bytes a second, and count `parameters`. rendezvous: a file to meet by, over gloo."""
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size, timeout=_WITHIN
    )
    try:
        return _measured(model, loss, world_size)
    finally:
        dist.destroy_process_group()


def _measured(model: Any, loss: Callable[[], torch.Tensor], world_size: int) -> dict[str, float]:
    """Measure passes, and, where there are others, the latency and bandwidth between them."""

    def computes() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss())

    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = {"parameters": float(parameters), "batch_s": _median(computes, _PASSES)}
    if world_size > 1:
        small, large = torch.zeros(_SMALL), torch.zeros(_LARGE)
        messages = 2 * (world_size - 1)
        latency_s = _median(lambda: dist.all_reduce(small), 20 * _ALL_REDUCES) / messages
        took_s = _median(lambda: dist.all_reduce(large), _ALL_REDUCES)
        sent = messages / world_size * large.numel() * large.element_size()
        found |= {"link_latency_s": latency_s, "link_bytes_per_s": sent / max(took_s - messages * latency_s, 1e-9)}
    return found


def _median(act: Callable[[], object], times: int) -> float:
    """Return the median of the seconds, of all processes at once; the first time warms up."""
    took_s = []
    for _ in range(times + 1):
        dist.barrier()
        begun_s = time.perf_counter()
        act()
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s[1:])


def perceptron() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a model of a million parameters and its loss, which are timed where no other model is named."""
    model = nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())), nn.Linear(_WIDTH, 10)
    )
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(_BATCH, _WIDTH, generator=draw)
    y = torch.randint(0, 10, (_BATCH,), generator=draw)
    return model, lambda: nn.functional.cross_entropy(model(x), y)

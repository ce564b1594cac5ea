"""One process of `elastic plan --measure`: times forward and backward passes while the others do, and all-reduces with
them over gloo. Rank 0 prints what it found, as JSON.

    python -m elastic.plan.measure_worker RANK WORLD_SIZE RENDEZVOUS_FILE MODULE:FUNCTION
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from checkpoint import linux

_WITHIN = timedelta(seconds=60)
_PASSES, _ALL_REDUCES = 7, 9
_SMALL, _LARGE = 256, 8 << 20  # floats


def main(argv: list[str]) -> int:
    linux.signal_at_parents_end(signal.SIGKILL)
    if os.getppid() == 1:
        return 1  # whoever measures has ended already
    rank, world_size, file, named = int(argv[0]), int(argv[1]), argv[2], argv[3]
    torch.set_num_threads(1)
    sys.path.insert(0, os.getcwd())
    module, _, function = named.partition(":")
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name not in (module, module.partition(".")[0]):
            raise  # of an import within it
        return _said(f"--model {named}: {missing}; expected a module that can be imported from {os.getcwd()}")
    if not hasattr(there, function):
        return _said(
            f"--model {named}: module {module!r} has no attribute {function!r}; expected the name of a function of it"
        )
    made = getattr(there, function)()
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        return _said(f"--model {named} gives {type(made).__name__}; expected (model, loss), a module and a function")
    model, loss = made
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size, timeout=_WITHIN)
    try:
        found = _measured(model, loss, world_size)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))
    return 0


def _said(why: str) -> int:
    """The exit status of a process that has nothing to measure."""
    print(why, file=sys.stderr)
    return 1


def _measured(model: Any, loss: Callable[[], torch.Tensor], world_size: int) -> dict[str, float]:
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
    """Seconds, of all processes at once; the first time warms up."""
    took_s = []
    for _ in range(times + 1):
        dist.barrier()
        begun_s = time.perf_counter()
        act()
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

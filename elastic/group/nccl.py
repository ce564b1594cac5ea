"""NCCL for a view whose workers have a GPU each. Where some share one, which NCCL refuses, gloo carries CUDA tensors.

torch 2.13's ProcessGroupNCCL watches its collectives from threads of its own: by default it ends the process when one
fails or is late, and asks the store for news while it runs, which here is a Python object. All of that is switched off:
a lost peer is group/watch.py's to notice, a deadline form.py's to keep, and `abort` wakes whoever waits. The
constructor is not in torch's documentation. Never run yet, for it takes two GPUs; tests/gpu has the questions.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # no ending of the process; torchrun sets 1
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # no thread that ends it where the watchdog is stuck
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",  # these two ask the store
}
"""docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"""


def connect(store: Store, prefix: str, rank: int, world_size: int, device: torch.device, timeout: timedelta) -> Any:
    """Return the NCCL group of a view, or None where some of its workers share a GPU. All ranks call it, and agree."""
    torch.cuda.set_device(device)  # this may be a thread of its own
    mine = str(torch.cuda.get_device_properties(device).uuid)
    store.set(f"{prefix}/gpu/{rank}", mine)
    everyones = [f"{prefix}/gpu/{other}" for other in range(world_size)]
    store.wait(everyones, timeout)
    if len({store.get(key) for key in everyones}) < world_size:
        return None
    from torch.distributed import ProcessGroupNCCL

    os.environ.update(SETTINGS)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(PrefixStore(f"{prefix}/nccl", store), rank, world_size, options)

"""Gives a script torch's mesh over its worker's replica, and makes the process group beneath it where there is none.

Under `elastic run --replica-size=K` each worker finds its replica's world in the variables that torchrun would set; it
is one process otherwise, or all of torchrun's. A replica's world is as large as long as it lives: one that loses a
worker ends, and another one begins with a world of its own.
"""

from __future__ import annotations

import atexit
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from elastic.errors import ConfigError
from elastic.membership import environment

_TIMEOUT = timedelta(minutes=30)  # as torch's own for gloo; `elastic run` ends a replica that hangs far sooner
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_DIMENSION = "shard"
_LETS_GO_S = 0.1


def device_mesh(device_type: str | None = None) -> DeviceMesh:
    """Return torch's DeviceMesh, of one dimension, over the workers that hold one copy of the state together.

    Under `elastic run --replica-size=K` these are the K workers of this worker's replica; under torchrun all of its
    workers; else this process alone. Initializes torch.distributed's default group over them where the script has not:
    gloo on CPUs, NCCL on GPUs, and then destroys it at the end of the process.

        mesh = elastic.device_mesh()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    Args:
        device_type: "cuda" or "cpu"; by default "cuda" where torch finds a GPU.

    Raises:
        ConfigError: The device is of another type; or the default group, which the script has made, is over other
            processes than these; or a launcher has started several and says of no place where they meet.
    """
    kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in _BACKENDS:
        raise ConfigError(f"device_mesh({kind!r}); expected one of {', '.join(_BACKENDS)}")
    launch = environment.read()
    size = launch.world_size if launch.channel is None else launch.replica_size
    if not dist.is_initialized():
        _initialize(launch, kind, size)
    if dist.get_world_size() != size:
        raise ConfigError(
            f"torch.distributed's default group is over {dist.get_world_size()} processes, and this worker is one of "
            f"{size} that hold a copy of the state together\n"
            "  next  leave out init_process_group, or its rank= and world_size="
        )
    return init_device_mesh(kind, (size,), mesh_dim_names=(_DIMENSION,))


def _initialize(launch: environment.Launch, kind: str, size: int) -> None:
    """Make the default group, and have it destroyed at the end of the process. Raises ConfigError."""
    if size == 1:
        dist.init_process_group(_BACKENDS[kind], store=dist.HashStore(), rank=0, world_size=1, timeout=_TIMEOUT)
    elif launch.channel is None and launch.master_addr is None:
        raise ConfigError(
            f"{launch.launcher} has started {size} processes and says of no place where they meet\n"
            "  next  call torch.distributed.init_process_group before, or start them with torchrun or `elastic run`"
        )
    else:
        dist.init_process_group(_BACKENDS[kind], timeout=_TIMEOUT)
    atexit.register(_destroy)


def _destroy() -> None:
    if dist.is_initialized():  # else the script has
        dist.destroy_process_group()
    # A thread of gloo's lets go of the last collective's tensors a moment after its end, and needs the interpreter for
    # that: where it is being taken apart by then, the process aborts (torch 2.13; one exit of four, in our tests).
    time.sleep(_LETS_GO_S)

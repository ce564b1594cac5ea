"""For tests of ranks that save and load together: states in several layouts, and a storage that tells what it moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.format.hashing import chunk_hashes
from elastic_checkpoint.save import commit as writer
from elastic_checkpoint.save.writer import WRITER_MODULE
from elastic_checkpoint.storage import Storage, open_storage
from elastic_checkpoint.testing import Plan

FINISH_S = 20.0
ODD_CHUNK_BYTES = 1001  # no multiple of any element's width, so that chunks end in the middle of all things

State = dict[str, Any]


def build(layout: str, seed: int) -> State:
    """A state in a layout: "plain", as DDP has it and a process alone; "fsdp".

    Of another model, "pair" is the plain layout, and "fsdp+tp" and "hsdp" are those on two-dimensional meshes.
    """
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(24, 13), torch.nn.BatchNorm1d(13), torch.nn.Linear(13, 32), torch.nn.Linear(32, 2)
    )
    if layout == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif layout == "fsdp+tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        pair = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        parallelize_module(pair, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(pair, mesh=mesh["data"])
        model = pair
    elif layout == "hsdp":
        model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
    elif layout == "pair":
        model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    extra = {"ema": torch.full((3, 5), float(seed)).bfloat16(), "none": torch.empty(0, 4)}
    return {"model": model, "optimizer": optimizer, "extra": extra, "epoch": seed}


def train(state: State, steps: int = 2) -> None:
    for step in range(steps):
        x = torch.randn(6, 24, generator=torch.Generator().manual_seed(step))
        state["optimizer"].zero_grad()
        state["model"](x).square().sum().backward()
        state["optimizer"].step()


def fingerprint(state: State) -> str:
    """A digest of all tensors, whole. Collective where they are sharded."""
    return digest({"model": _whole(state["model"]), "optimizer": _whole(state["optimizer"]), "extra": state["extra"]})


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor()
    if hasattr(value, "state_dict"):
        return _whole(value.state_dict())
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


class Counted:
    """A storage that counts the bytes of data objects that went through it, and can be interrupted before they do."""

    def __init__(self, inner: Storage, before_put: Callable[[str], None] = lambda key: None) -> None:
        self._inner = inner
        self._before_put = before_put
        self.before_get: Callable[[], None] = lambda: None
        self.put_bytes = 0
        self.got: list[tuple[str, int, int]] = []  # key, start, bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, key: str, data: Any) -> None:
        self._before_put(key)
        self.put_bytes += len(data)
        self._inner.put(key, data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.startswith("data/"):
            self.before_get()
        data = self._inner.get(key, start, length)
        if key.startswith("data/"):
            self.got.append((key, start, len(data)))
        return data


@contextmanager
def ranks_of(
    folder: str,
    rank: int,
    world_size: int,
    *,
    chunk_bytes: int | None = None,
    before_put: Callable[[str], None] = lambda key: None,
    finish_s: float = FINISH_S,
    name: str,
    log: Callable[[str], None] = lambda line: None,
    shard_bytes: int = 4000,
    **options: Any,
) -> Iterator[tuple[Checkpointer, Counted]]:
    """torch.distributed on gloo, and a checkpointer of all ranks on `folder`/run. world_size 0: this process alone.

    name     of the meeting: another one for each
    options  of the checkpointer
    """
    if world_size:
        dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=world_size)
    if chunk_bytes is not None:
        size = chunk_bytes
        writer.CHUNK_BYTES = size
        writer.chunk_hashes = lambda data, chunk_bytes=size: chunk_hashes(data, chunk_bytes)
    storage = Counted(open_storage(f"{folder}/run"), before_put)
    with Checkpointer(
        storage, group="auto", finish_s=finish_s, grace_s=2.0, shard_bytes=shard_bytes, log=log, **options
    ) as runs:
        yield runs, storage
    if world_size:
        dist.destroy_process_group()


@contextmanager
def beside(
    folder: str, rank: int, world_size: int, *, name: str, faults: Plan | None = None, **options: Any
) -> Iterator[Checkpointer]:
    """As `ranks_of`, for saves in the background: writer processes open the storage by its URL, with these faults."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=world_size)
    url, storage_options = f"{folder}/run", {}
    if faults is not None:
        url = f"faulty://{url}"
        storage_options = {
            "target_protocol": "file",
            "target_options": {"auto_mkdir": True},
            "faults": faults.document(),
        }
    chosen = {"finish_s": FINISH_S, "grace_s": 2.0, "shard_bytes": 4000, "keep": 100, "log": lambda line: None}
    with Checkpointer(url, storage_options=storage_options, **{"group": "auto", **chosen, **options}) as runs:
        yield runs
    dist.destroy_process_group()


def own_writer(folder: str) -> psutil.Process:
    """This process's writer process, which is noted for `writers_left`."""
    [found] = [one for one in psutil.Process().children() if WRITER_MODULE in one.cmdline()]
    noted = Path(folder, "writers")
    noted.mkdir(exist_ok=True)
    (noted / str(found.pid)).touch()
    return found


def writers_left(folder: Path, within_s: float = 60.0) -> list[psutil.Process]:
    """The noted writer processes that are still there after a while."""
    found = []
    for noted in (folder / "writers").iterdir():
        try:
            process = psutil.Process(int(noted.name))
            if WRITER_MODULE in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return psutil.wait_procs(found, within_s)[1]

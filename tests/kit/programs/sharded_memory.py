"""Counts the bytes of a sharded model's tensors in one step: 10 M parameters, passed as examples of next to no size.

Each worker prints one line of JSON: its state, what its sums keep, and the most that was there at once, in each part of
the step. What only gloo, or autograd, still holds counts as well: storages are followed by weak references from the
operation on that made them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

import elastic
from elastic.group import form
from elastic.group.sharded_gradients import ShardedGradientSum

WIDTH, BLOCKS = 1000, 10
COUNTED = 2  # the step in which it is counted: the optimizer has its moments, and all memory that is kept is there


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operations give.

    most  part of the step -> the most bytes that were there at once
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most: dict[str, int] = {}
        self.part: str | None = None  # None: nothing is counted
        self._known: dict[int, StorageWeakRef] = {}

    def follow(self, tensors: Any) -> None:
        for one in tree_leaves(tensors):
            if isinstance(one, torch.Tensor):
                storage = local(one).untyped_storage()
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._known[reference.cdata] = reference

    def bytes(self) -> int:
        total = 0
        for cdata, reference in list(self._known.items()):
            storage: Any = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self._known[cdata]
            else:
                total += storage.nbytes()
        return total

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.follow(result)
        if self.part is not None:
            self.most[self.part] = max(self.most.get(self.part, 0), self.bytes())
        return result


def local(tensor: Any) -> torch.Tensor:
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--virtual-workers", type=int, default=12)
    parser.add_argument("--whole", action="store_true", help="it is not sharded")
    options = parser.parse_args()
    elastic.seed(0)
    torch.manual_seed(0)
    live = LiveBytes()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)))
    parameters = sum(one.numel() for one in model.parameters())
    unit = sum(one.numel() for one in model[0].parameters())
    if not options.whole:
        mesh = elastic.device_mesh()
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    kept = 0
    flush, finish = ShardedGradientSum.flush, ShardedGradientSum.finish

    def flushes(self: ShardedGradientSum) -> None:
        live.part = None if live.part is None else "exchange"
        flush(self)

    def finishes(self: ShardedGradientSum, divisor: float) -> None:
        nonlocal kept
        finish(self, divisor)
        kept = self.held_bytes
        live.part = None if live.part is None else "update"

    ShardedGradientSum.flush, ShardedGradientSum.finish = flushes, finishes  # type: ignore[method-assign]
    wait = form.Work.wait

    def waits(self: form.Work) -> None:
        with _disable_current_modes():  # a wait that looks up now and then raises, which a mode does not hand on
            wait(self)

    form.Work.wait = waits  # type: ignore[method-assign]
    with (
        elastic.Run(
            options.url,
            model=model,
            optimizer=optimizer,
            dataset=TensorDataset(torch.randn(48, WIDTH)),
            batch_size=24,
            virtual_workers=options.virtual_workers,
            steps=COUNTED + 1,
            save_every=100,
        ) as run,
        live,
    ):
        live.follow([list(model.parameters()), model.state_dict()])
        for step in run:
            if step.index == COUNTED:
                live.follow([list(model.parameters()), [list(one.values()) for one in optimizer.state.values()]])
                live.part = "passes"
            for (x,) in step:
                step.backward(model(x).sum(), count=len(x))
            live.part = None
    state = sum(local(one).nbytes for one in model.parameters())
    state += sum(local(one).nbytes for held in optimizer.state.values() for one in held.values())
    found = {"rank": run.rank, "parameters": parameters, "unit": unit, "state": state, "kept": kept, "most": live.most}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""One worker of the benchmark: steps of Run and of plain loops, block by block in turns, in one process.

    python -m tests.benchmarks.throughput WORKLOAD CYCLES RESULT.json          alone, or under torchrun

Blocks that follow each other meet the same noise, so the ratio of two neighbours says more than two averages.
The plain loops are written as one writes them to be fast; with two workers they are DistributedDataParallel with its
defaults. All read the same tensors in steps of the same size, on one thread per worker.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elastic
from elastic.group.gradients import GradientSum
from tests.benchmarks import parts
from tests.benchmarks.workloads import VIRTUAL_WORKERS, Workload, workloads
from tests.kit.arguments import grouped

CLIP = 1.0
WARM_UP = 2  # blocks: names are agreed, buffers are warm, the allocator has seen every size
ENDLESS = 10**9


class Peer:
    """A plain loop, or DDP where there are several workers: `pieces` micro-batches on each, accumulated."""

    def __init__(self, workload: Workload, pieces: int, rank: int, world_size: int) -> None:
        elastic.seed(0)
        self._workload = workload
        self._pieces = pieces
        self._rank, self._world_size = rank, world_size
        model = workload.make()
        self._parameters = list(model.parameters())
        self._optimizer = workload.optimizer(model)
        trained: Any = DistributedDataParallel(model) if world_size > 1 else model
        # Out of sight: a run refuses a model that trains beside its own and that it was not handed.
        self._model: Callable[[], Any] = lambda: trained
        self._batches = self._order()
        # DDP takes the mean over workers of what is summed here, so each worker's sum counts world_size times.
        self._scale = world_size / (workload.batch_size * workload.per_example)

    def step(self) -> float:
        total = torch.zeros(())
        batches = next(self._batches)
        for number, chosen in enumerate(batches):
            inputs, targets = self.read(chosen)
            accumulates = self._world_size > 1 and number < len(batches) - 1
            with self._model().no_sync() if accumulates else nullcontext():
                loss = self._workload.loss(self._model(), inputs, targets)
                torch.autograd.backward(loss * self._scale)
            total += loss.detach()
        self.update()
        return total.item()

    def read(self, chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[chosen] for tensor in self._workload.data.tensors)

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        # Without torch's hooks: by one an open Run refuses optimizers that step in its loop and are none of its own.
        type(self._optimizer).step.__wrapped__(self._optimizer)  # type: ignore[attr-defined]
        self._optimizer.zero_grad()

    def _order(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """This worker's micro-batches of each step: shuffled epochs, whole batches only."""
        while True:
            order = torch.randperm(len(self._workload.data))
            for batch in torch.split(order, self._workload.batch_size)[: len(order) // self._workload.batch_size]:
                yield batch.tensor_split(self._world_size)[self._rank].tensor_split(self._pieces)


class Elastic:
    """The same with Run, stepped by hand."""

    def __init__(self, run: elastic.Run, workload: Workload) -> None:
        assert isinstance(run.model, torch.nn.Module)
        self._model = run.model
        self._workload = workload
        self._steps = iter(run)

    def step(self) -> float:
        step = next(self._steps)
        self._shares(step)
        return float(step.sums["loss"])

    def finish(self) -> None:
        for step in self._steps:
            self._shares(step)

    def _shares(self, step: elastic.Step) -> None:
        for inputs, targets in step:
            loss = self._workload.loss(self._model, inputs, targets)
            step.backward(loss, count=targets.numel())
            step.add(loss=loss)


class Plain:
    """A loop over run.batches(), batch by batch until a step is applied."""

    def __init__(self, run: elastic.Run, workload: Workload) -> None:
        self._run = run
        self._model = run.model
        (self._optimizer,) = run.optimizers.values()
        self._workload = workload
        self._batches = run.batches()

    def step(self) -> float:
        while self._body():
            if self._run.stepped:
                return float(self._run.sums["loss"])
        raise RuntimeError("the run has ended")

    def finish(self) -> None:
        while self._body():
            pass

    def _body(self) -> bool:
        batch = next(self._batches, None)
        if batch is None:
            return False
        inputs, targets = batch
        loss = self._workload.loss(self._model, inputs, targets)
        self._run.add(loss=loss.detach())
        torch.autograd.backward(loss / targets.numel())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return True


def opened(workload: Workload, mode: Any, url: str, **options: Any) -> elastic.Run:
    elastic.seed(0)
    model = workload.make()
    return elastic.Run(
        url,
        model=model,
        optimizer=workload.optimizer(model),
        dataset=workload.data,
        batch_size=workload.batch_size,
        virtual_workers=VIRTUAL_WORKERS,
        **grouped(options, last_batch="drop", mode=mode),
        steps=ENDLESS,
        save_every=ENDLESS,
    )


def seconds(step: Callable[[], object], steps: int, world_size: int) -> list[float]:
    """[wall clock, CPU] of a block: of the slowest worker, and of all workers together."""
    if world_size > 1:
        dist.barrier()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    if world_size == 1:
        return [wall_s, cpu_s]
    spent = torch.tensor([[wall_s, cpu_s]], dtype=torch.float64)
    everyones = [torch.empty_like(spent) for _ in range(world_size)]
    dist.all_gather(everyones, spent)
    walls, cpus = torch.cat(everyones).T
    return [float(walls.max()), float(cpus.sum())]


def in_turns(
    loops: Mapping[str, Callable[[], object]], block: int, cycles: int, world_size: int
) -> dict[str, list[Any]]:
    """Per loop, `seconds` of every block. Every other cycle goes backwards, so that no loop is always the first."""
    spent: dict[str, list[Any]] = {name: [] for name in loops}
    for cycle in range(WARM_UP + cycles):
        for name, step in list(loops.items())[:: 1 if cycle % 2 else -1]:
            took = seconds(step, block, world_size)
            if cycle >= WARM_UP:
                spent[name].append(took)
    return spent


def measured(workload: Workload, mode: str, peers: dict[str, Peer], cycles: int, world_size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        folders: list[Any] = [folder]
        if world_size > 1:
            dist.broadcast_object_list(folders)
        with (
            opened(workload, mode, f"{folders[0]}/run", clip_grad_norm=CLIP) as run,
            opened(workload, mode, f"{folders[0]}/plain") as plain_run,
        ):
            ours, plain = Elastic(run, workload), Plain(plain_run, workload)
            loops = {mode: ours.step, f"{mode}, plain": plain.step}
            loops |= {name: peer.step for name, peer in peers.items()}
            spent = in_turns(loops, workload.block, cycles, world_size)
            watched = workload.block * min(cycles, 4)
            where = {
                name: parts.measure(parts.of_run(one), workload, step, watched, hooks_of(one))
                for name, one, step in ((mode, run, ours.step), (f"{mode}, plain", plain_run, plain.step))
            }
            for name, peer in peers.items():
                where[name] = parts.measure(parts.of_peer(peer), workload, peer.step, watched)
            run.stop("measured")
            plain_run.stop("measured")
            plain.finish()  # the signals' pipes are given back in reverse
            ours.finish()
    return {"seconds": spent, "steps_per_block": workload.block, "parts_ms": where}


def hooks_of(run: elastic.Run) -> GradientSum:
    assert run._loop is not None
    gradients = run._loop.session.gradient_sync.gradients
    assert isinstance(gradients, GradientSum)
    return gradients


def main() -> None:
    name, cycles, result = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    rank, world_size = 0, 1
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
    workload = workloads()[name]
    accumulated = Peer(workload, VIRTUAL_WORKERS // world_size, rank, world_size)
    whole = Peer(workload, 1, rank, world_size)
    found = {
        "exact": measured(workload, "exact", {"accumulated": accumulated, "whole": whole}, cycles, world_size),
        "fast": measured(workload, "fast", {"whole": whole}, cycles, world_size),
    }
    if rank == 0:
        result.write_text(json.dumps(found))
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

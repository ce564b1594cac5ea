"""One worker of the benchmark of sharded models: steps of Run and of a plain loop over fully_shard, in turns.

    python -m tests.benchmarks.sharded_steps CYCLES RESULT.json          by torchrun: all of its workers are one replica

Both loops pass as many batches of the same size through as many units, and gather and exchange in every one of these
passes; the plain loop has torch's own reduce-scatter, which adds into `.grad`. Then the row and the votes of a step,
and the norm, in a loop of their own: what they take where nobody waits for another's pass.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import elastic
from elastic.group.replica_group import Word
from elastic.state.clipping import exact_norm
from tests.benchmarks.throughput import ENDLESS, Elastic, in_turns, seconds
from tests.benchmarks.workloads import VIRTUAL_WORKERS, CharacterGPT, Workload, workloads

SMALL = 200  # rounds of what takes less than a millisecond


class Peer:
    """A plain loop: this worker's part of a batch in as many passes as Run makes."""

    def __init__(self, workload: Workload, mesh: DeviceMesh) -> None:
        model = sharded(workload, mesh)
        self._workload, self._place, self._size = workload, mesh.get_local_rank(), mesh.size()
        self.parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, foreach=True)
        # out of sight: a run refuses a model that trains beside its own and that it was not handed
        self._model: Callable[[], Any] = lambda: model

    def step(self) -> None:
        chosen = torch.randperm(len(self._workload.data))[: self._workload.batch_size]
        for piece in chosen.tensor_split(VIRTUAL_WORKERS)[self._place :: self._size]:
            inputs, targets = (tensor[piece] for tensor in self._workload.data.tensors)
            loss = self._workload.loss(self._model(), inputs, targets)
            torch.autograd.backward(loss / (len(chosen) * self._workload.per_example))
        # without torch's hooks: by one an open Run refuses optimizers that step in its loop and are none of its own
        type(self._optimizer).step.__wrapped__(self._optimizer)  # type: ignore[attr-defined]
        self._optimizer.zero_grad()


def sharded(workload: Workload, mesh: DeviceMesh) -> CharacterGPT:
    elastic.seed(0)
    model = workload.make()
    assert isinstance(model, CharacterGPT)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    cycles, result = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    mesh, workload = elastic.device_mesh("cpu"), workloads()["gpt"]
    size = mesh.size()
    peer, model = Peer(workload, mesh), sharded(workload, mesh)
    folders: list[Any] = [tempfile.mkdtemp()]  # under what the launcher removes
    dist.broadcast_object_list(folders)
    with elastic.Run(
        f"{folders[0]}/run",
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True),
        dataset=workload.data,
        batch_size=workload.batch_size,
        virtual_workers=VIRTUAL_WORKERS,
        steps=ENDLESS,
        save_every=ENDLESS,
        data=elastic.Data(last_batch="drop"),
        checks=elastic.Checks(cross_check=None),
    ) as run:
        ours = Elastic(run, workload)
        spent = in_turns({"run": ours.step, "torch": peer.step}, workload.block, cycles, size)
        small = {name: median_s(of, size) for name, of in of_a_step(run, peer).items()}
        run.stop("measured")
        ours.finish()
    if mesh.get_local_rank() == 0:
        result.write_text(json.dumps({"seconds": spent, "small": small, "passes": VIRTUAL_WORKERS // size}))


def of_a_step(run: elastic.Run, peer: Peer) -> dict[str, Callable[[], object]]:
    """What a step of several members has besides its passes: in words, and what does it."""
    assert run._loop is not None
    session = run._loop.session
    mates, sync = session.mates, session.gradient_sync
    assert mates is not None
    gradients = [parameter.detach() for parameter in peer.parameters]
    return {
        "a vote": lambda: mates.vote(Word.ON),
        "the word that comes last": lambda: sync.all_hold(0),
        "the exact norm": lambda: float(exact_norm(gradients)),
    }


def median_s(of: Callable[[], object], size: int) -> list[float]:
    """[wall clock of the slowest worker, processor time of all] of one call."""
    found = [seconds(of, SMALL // 10, size) for _ in range(10)]
    return [statistics.median(one[clock] for one in found) * 10 / SMALL for clock in (0, 1)]


if __name__ == "__main__":
    main()

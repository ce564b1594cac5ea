"""The loops that benchmarks take in turns, in one process with two runs whose rules are strict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

import elastic
from tests.benchmarks import parts
from tests.benchmarks.parts import ORDER
from tests.benchmarks.throughput import Peer, measured
from tests.benchmarks.workloads import VIRTUAL_WORKERS, workloads


def test_a_run_and_its_peers_take_turns() -> None:
    workload = replace(workloads()["digits"], block=2)
    cycles = 2
    found = measured(workload, "exact", {"accumulated": Peer(workload, VIRTUAL_WORKERS, 0, 1)}, cycles, 1)
    assert {name: len(blocks) for name, blocks in found["seconds"].items()} == dict.fromkeys(
        ["exact", "exact, plain", "accumulated"], cycles
    )


def test_the_parts_of_a_step_are_there(tmp_path: Path) -> None:
    """They are named by strings, which no type checker reads: one that had moved ended the benchmark."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters())
    data = [(torch.ones(1), torch.ones(1))] * 4
    with elastic.Run(
        tmp_path, model=model, optimizer=optimizer, dataset=data, batch_size=4, virtual_workers=1, steps=1
    ) as run:
        for step in run:
            for x, y in step:
                there = [(hasattr(owner, name) and part in ORDER, name) for owner, name, part in parts.of_run(run)]
                step.backward(((model(x) - y) ** 2).sum(), count=len(x))
    assert [name for is_there, name in there if not is_there] == []

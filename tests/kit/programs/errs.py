"""A training run on one of whose workers something goes wrong: python -m tests.kit.programs.errs URL [flags]

Prints the weights' digest. What goes wrong does so in the worker with that local rank, from step --at on; with --once
in one process alone, the first to come there.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import elastic
import elastic_checkpoint

KINDS = ["none", "multiplies", "weight", "moment", "gradient", "reads", "counts", "began", "rate", "clamps"]


class Noisy(Dataset[Any]):
    level = 0.0

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index % 7)) + torch.rand(4) + self.level, torch.tensor(index % 2)


class Product(nn.Module):
    """wrong: by how much"""

    wrong = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + self.wrong)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--kind", choices=KINDS, default="none")
    parser.add_argument("--at", type=int, default=5)
    parser.add_argument("--worker", type=int, default=1)
    parser.add_argument("--joins", action="store_true", help="in that worker's successors, and it is killed at --at")
    parser.add_argument("--once", type=Path, default=None)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--cross-check", type=float, default=0.0)
    parser.add_argument("--over-steps", action="store_true")
    return parser.parse_args()


class Fault:
    def __init__(self, given: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, data: Noisy):
        self._given, self._model, self._optimizer, self._data = given, model, optimizer, data
        self._product = next(one for one in model.modules() if isinstance(one, Product))
        self._bodies, self._hurts = 0, False
        self.steps = 0
        self._began: int | None = None
        model.get_parameter("0.weight").register_hook(self._hurt)  # type: ignore[no-untyped-call]

    def strike(self, step: int) -> float:
        """Before a body. What its loss is multiplied by."""
        given, self._bodies = self._given, self._bodies + 1
        self._began = step if self._began is None else self._began
        if given.kind == "counts" and step >= given.at:
            return 1.0 + self._bodies / 100
        if int(os.environ["LOCAL_RANK"]) != given.worker or step < given.at:
            return 1.0
        if given.joins and os.environ["ELASTIC_RESTART"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if given.kind == "began":
            return 1.0 + self._began / 100
        if given.once is not None:
            try:
                given.once.touch(exist_ok=False)
            except FileExistsError:
                if given.kind in ("weight", "moment", "gradient") or given.once.read_text() != str(os.getpid()):
                    return 1.0
            else:
                given.once.write_text(str(os.getpid()))
        weight = self._model.get_parameter("0.weight")
        if given.kind == "multiplies":
            self._product.wrong = 1e-4
        elif given.kind == "reads":
            self._data.level = 0.25
        elif given.kind == "gradient":
            self._hurts = True
        elif given.kind in ("weight", "moment"):
            hit = weight if given.kind == "weight" else self._optimizer.state[weight]["exp_avg"]
            ctypes.c_uint32.from_address(hit.data_ptr() + hit.nbytes - 4).value ^= 1 << 20
        return 1.0

    def _hurt(self, gradient: torch.Tensor) -> torch.Tensor:
        hurts, self._hurts = self._hurts, False
        return gradient * 1.01 if hurts else gradient


def main() -> None:
    given = arguments()
    elastic.seed(1)
    model = nn.Sequential(nn.Linear(4, 512), Product(), nn.BatchNorm1d(512), nn.Dropout(0.2), nn.Linear(512, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    data = Noisy()
    fault = Fault(given, model, optimizer, data)
    with elastic.Run(
        given.url,
        model=model,
        optimizer=optimizer,
        dataset=data,
        batch_size=24,
        virtual_workers=6,
        steps=given.steps,
        save_every=4,
        checks=elastic.Checks(cross_check=given.cross_check),
    ) as run:
        if given.over_steps:
            for step in run:
                for x, y in step:
                    by = fault.strike(step.index)
                    step.backward(by * F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
        else:
            for x, y in run.batches():
                by = fault.strike(run.step_index)
                if run.world_size < given.unhurried:
                    time.sleep(0.1)
                optimizer.zero_grad()
                (by * F.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if run.stepped and given.kind == "clamps" and run.is_coordinator and run.step_index > given.at:
                    with torch.no_grad():
                        model.get_parameter("0.weight").clamp_(-0.1, 0.1)
                if run.stepped and given.kind == "rate":  # by how many steps this worker has seen
                    fault.steps += 1
                    optimizer.param_groups[0]["lr"] = 1e-3 / (1 + fault.steps / 100)
        rank = run.rank
    if rank == 0:
        print("digest", elastic_checkpoint.digest(model))


if __name__ == "__main__":
    main()

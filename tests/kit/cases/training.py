"""Small trainings that each stress one thing that could make the world size show in the bits.

    one case  ->  a fresh Run in a fresh folder, six steps or so  ->  an Outcome: digests and a few plain numbers

A full batch has 20 examples in 6 shares of 3 or 4, and the last step of an epoch 10 examples in 3 shares: at a world
size above 3 every case has ranks without work. Every case draws random numbers outside its shares as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elastic
import elastic_checkpoint
from elastic.config import Mode
from elastic.events.digests import digest_of_sums
from tests.kit.arguments import grouped

LENGTH, BATCH, SHARES, EPOCHS = 50, 20, 6, 2
FEATURES, CLASSES = 8, 3

Outcome = dict[str, Any]
Inner = Callable[[elastic.Run, elastic.Step, Any], None]
After = Callable[[elastic.Run, elastic.Step], None]


@dataclass(frozen=True)
class Training:
    """What a case's function is given: where to train, and how the run is started unless the case says otherwise."""

    url: Path
    mode: Mode = "exact"
    outcome: Outcome = field(default_factory=dict)

    def __call__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        *,
        inner: Inner | None = None,
        after: After | None = None,
        before: Callable[[elastic.Run], None] | None = None,
        evaluated: Callable[..., Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        """Trains, and leaves in `outcome` what must not depend on the world size.

        inner      the inner loop's body, default `classify`; after: what follows the inner loop; before: the outer loop
        evaluated  for run.evaluate on the dataset, at the end
        """
        dataset = options.pop("dataset", None) or points()
        arguments = {"batch_size": BATCH, "virtual_workers": SHARES, "epochs": EPOCHS, "seed": 5, "save_every": 1000}
        steps: list[str] = []
        drawn: list[float] = []
        with elastic.Run(
            self.url,
            model=model,
            optimizer=optimizer,
            dataset=dataset,
            **grouped(arguments | options, mode=self.mode),
        ) as run:
            if before is not None:
                before(run)
            for step in run:
                for batch in step:
                    (inner or classify)(run, step, batch)
                steps.append(digest_of_sums(step.sums, step.count))
                self.outcome.setdefault("counts", []).append(step.count)
                self.outcome.setdefault("sums", []).append(_plain(step.sums))
                drawn += [torch.rand(()).item(), random.random(), np.random.rand()]
                if after is not None:
                    after(run, step)
            if evaluated is not None:
                self.outcome["evaluation"] = _plain(run.evaluate(dataset, evaluated))
            models = dict(model) if isinstance(model, Mapping) else {"model": model}
            gradients = {k: {n: p.grad for n, p in m.named_parameters()} for k, m in models.items()}
            self.outcome.update(
                weights=elastic_checkpoint.digest(models),
                buffers=elastic_checkpoint.digest({key: dict(one.named_buffers()) for key, one in models.items()}),
                gradients=elastic_checkpoint.digest(gradients),
                state=elastic_checkpoint.digest({name: options.get(name) for name in ("scheduler", "scaler", "extra")}),
                optimizers=elastic_checkpoint.digest(dict(run.optimizers)),
                steps=steps,
                drawn=drawn,
                stopped=run.stopped,
            )
            self.outcome["values"] = [
                p.detach().double().flatten().tolist() for m in models.values() for p in m.parameters()
            ]


Case = Callable[[Training], None]
CASES: dict[str, Case] = {}
ALSO_FAST: set[str] = set()


def case(function: Case) -> Case:
    """Registers a case under its function's name."""
    CASES[function.__name__] = function
    return function


def also_fast(function: Case) -> Case:
    """A case whose mathematics knows nothing of shares: no dropout, no batch statistics. So fast mode agrees."""
    ALSO_FAST.add(function.__name__)
    return case(function)


class Points:
    """Random points in eight dimensions with a label; `noisy` ones draw from all three generators at every read."""

    def __init__(self, length: int = LENGTH, *, noisy: bool = False, shape: tuple[int, ...] = (FEATURES,)) -> None:
        draw = torch.Generator().manual_seed(3)
        self.points = torch.randn(length, *shape, generator=draw)
        self.labels = self.points.flatten(1).sum(dim=1).mul(2).long() % CLASSES
        self._noisy = noisy

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.points[index]
        if self._noisy:
            x = x + 0.1 * torch.randn(x.shape) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return x, self.labels[index]


def points(length: int = LENGTH) -> Points:
    return Points(length)


def images(length: int = LENGTH) -> Points:
    return Points(length, shape=(2, 6, 6))


def network(dropout: float = 0.0, width: int = 12) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, width), nn.Linear(width, CLASSES)
    )


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def classify(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
    """The body that most cases have: cross entropy of `run.model`."""
    x, y = batch
    model: Any = run.model
    scores = model(x).float()
    loss = F.cross_entropy(scores, y, reduction="sum")
    step.backward(loss, count=len(y))
    step.add(loss=loss, correct=(scores.argmax(dim=1) == y).sum())


def _plain(sums: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON keeps it."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in sums.items()}

"""Cases about what modules keep in attributes: caches, what passes leave behind, modes, and an extra state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.kit.cases.training import CLASSES, FEATURES, Training, adamw, case


class Keeping(nn.Module):
    """A table made at the first pass, what a pass leaves behind (a shape, an activation), and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.made = False
        self.table: torch.Tensor | None = None
        self.seen: torch.Tensor | None = None
        self.penalty: torch.Tensor | None = None
        self.temperature = 2.0
        self.norm = nn.BatchNorm1d(FEATURES)
        self.dropout = nn.Dropout(0.5)
        self.mix = nn.utils.spectral_norm(nn.Linear(FEATURES, FEATURES))  # its plain `weight` is a parameter's memory
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.made:
            self.table, self.made = torch.linspace(0, 1, FEATURES), True
        assert self.table is not None
        self.shape = tuple(x.shape)
        self.seen = x.detach()
        scores: torch.Tensor = self.out(self.dropout(self.mix(self.norm(x))) + self.table)
        self.penalty = scores.square().sum() * 0.01
        return scores / self.temperature

    def get_extra_state(self) -> dict[str, float]:
        return {"temperature": self.temperature, "p": self.dropout.p}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.temperature, self.dropout.p = state["temperature"], state["p"]


@case
def attributes_that_passes_leave_and_updates_change(train: Training) -> None:
    model = Keeping()

    def inner(run: Any, step: Any, batch: Any) -> None:
        if step.index >= 2:
            model.norm.eval()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        assert model.penalty is not None
        step.backward(loss + model.penalty, count=len(batch[1]))

    def update(run: Any, step: Any) -> None:
        run.optimizers["optimizer"].step()
        model.temperature *= 0.9
        model.dropout.p *= 0.9

    train(model, adamw(model), inner=inner, apply=update)

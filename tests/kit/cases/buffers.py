"""Cases about buffers: what V shares of a step make of one running average, counter or cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.kit.cases.training import CLASSES, FEATURES, Training, adamw, case, images, points, sgd


def normalised(momentum: float | None = 0.1) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 12),
        nn.BatchNorm1d(12, momentum=momentum),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(12, CLASSES),
    )


@case
def batch_norm(train: Training) -> None:
    model = normalised()
    train(model, adamw(model), evaluated=lambda x, y: {"correct": (model(x).argmax(dim=1) == y).sum()})


@case
def batch_norm_in_micro_batches(train: Training) -> None:
    """Shares of four, so that all have as many micro-batches: the counter of batches is an integer that must agree."""
    model = normalised()
    train(model, adamw(model), dataset=points(48), micro_batch_size=3, batch_size=28, virtual_workers=7)


@case
def cumulative_batch_norm_of_images(train: Training) -> None:
    """momentum=None averages over all steps so far: its integer counter takes part in the arithmetic."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(64, CLASSES))
    train(model, sgd(model), dataset=images(), evaluated=lambda x, _: {"scores": model(x).sum(dim=0)})


class Centred(nn.Module):
    """Keeps running means of its input: one outside the state_dict, one assigned anew in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: torch.Tensor
        self.assigned: torch.Tensor
        self.register_buffer("inside", torch.zeros(FEATURES), persistent=False)
        self.register_buffer("assigned", torch.zeros(FEATURES))
        self.register_buffer("fixed", torch.linspace(0, 1, FEATURES))
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.inside.lerp_(x.detach().mean(dim=0), 0.3)
            self.assigned = 0.7 * self.assigned + 0.3 * x.detach().square().mean(dim=0)
        scores: torch.Tensor = self.out((x - self.inside) * torch.rsqrt(self.assigned + 1) + self.get_buffer("fixed"))
        return scores


@case
def buffers_outside_the_state_dict_and_assigned_in_forward(train: Training) -> None:
    model = Centred()
    train(model, adamw(model))


class Counting(nn.Module):
    """Integer and bool buffers that every share changes alike, and two that need a rule of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: torch.Tensor
        self.started: torch.Tensor
        self.last_label: torch.Tensor
        self.scratch: torch.Tensor
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("started", torch.tensor(False))
        self.register_buffer("last_label", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(FEATURES))
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
            self.started.fill_(True)
            self.last_label.fill_(int(x[0].argmax()))
            self.scratch.copy_(x[0].detach())
        scores: torch.Tensor = self.out(x + self.steps * 0.01 + self.last_label * 0.1 + self.scratch)
        return scores


@case
def integer_buffers_and_rules_of_ones_own(train: Training) -> None:
    model = Counting()
    train(model, adamw(model), buffers={"last_label": "first", "scratch": "keep"})


class Awakening(nn.Module):
    """A buffer that moves from some step on, and only in some shares: ranks learn of it while they exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.peak: torch.Tensor
        self.register_buffer("peak", torch.zeros(FEATURES))
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x[:, 0] > 1.2).any()):
            self.peak.copy_(torch.maximum(self.peak, x.detach().amax(dim=0)))
        scores: torch.Tensor = self.out(x + 0.1 * self.peak)
        return scores


@case
def a_buffer_that_moves_only_in_some_shares(train: Training) -> None:
    model = Awakening()
    train(model, adamw(model))


@case
def batch_norm_in_bf16(train: Training) -> None:
    """Statistics of a 16-bit model are averaged in fp32 and cast once."""
    model = normalised().to(torch.bfloat16)

    def inner(run: Any, step: Any, batch: Any) -> None:
        scores = model(batch[0].bfloat16()).float()
        loss = nn.functional.cross_entropy(scores, batch[1], reduction="sum")
        step.backward(loss, count=len(batch[1]))

    train(model, sgd(model), inner=inner)

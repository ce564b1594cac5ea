"""Cases about buffers: what V shares of a step make of one running average, counter or cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.kit.cases.training import BATCH, CLASSES, FEATURES, Training, adamw, case, images, points, sgd


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
    train(model, adamw(model), buffers={"inside": "mean", "assigned": "mean"})


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
    rules = {"last_label": "first", "scratch": "keep", "steps": "first", "started": "agree"}
    train(model, adamw(model), buffers=rules)


class Remembering(nn.Module):
    """A queue of what has passed, as a contrastive method's: each share writes its own rows to it; and a count of
    examples, which says where."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: torch.Tensor
        self.seen: torch.Tensor
        self.register_buffer("queue", torch.zeros(3 * BATCH // 2, FEATURES))
        self.register_buffer("seen", torch.tensor(0))
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(x + 0.1 * self.queue.clone().mean(dim=0))
        if self.training:
            self.queue[(self.seen + torch.arange(len(x))) % len(self.queue)] = x.detach()
            self.seen += len(x)
        return scores

    def enqueued(self, values: list[torch.Tensor]) -> torch.Tensor:
        """The queue after a step: the module's is as the step began."""
        queue, at = self.queue.clone(), int(self.seen)
        for value in values:
            new = value[(value != self.queue).any(dim=1)]
            queue[(at + torch.arange(len(new))) % len(queue)] = new
            at += len(new)
        return queue


@case
def a_queue_and_a_count_of_examples(train: Training) -> None:
    model = Remembering()
    train(model, adamw(model), buffers={"queue": model.enqueued, "seen": "sum"})


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
    train(model, adamw(model), buffers={"peak": "mean"})


@case
def batch_norm_in_bf16(train: Training) -> None:
    """Statistics of a 16-bit model are averaged in fp32 and cast once."""
    model = normalised().to(torch.bfloat16)

    def inner(run: Any, step: Any, batch: Any) -> None:
        scores = model(batch[0].bfloat16()).float()
        loss = nn.functional.cross_entropy(scores, batch[1], reduction="sum")
        step.backward(loss, count=len(batch[1]))

    train(model, sgd(model), inner=inner)


@case
def a_teacher_in_extra_whose_statistics_move(train: Training) -> None:
    """Its BatchNorm moved with the shares of each rank, and what an evaluation said of it depended on them."""
    model, teacher = normalised(), normalised()

    def average(run: Any, step: Any) -> None:
        with torch.no_grad():
            for mean, weight in zip(teacher.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)

    def inner(run: Any, step: Any, batch: Any) -> None:
        with torch.no_grad():
            target = teacher(batch[0] + 0.1 * torch.randn_like(batch[0]))
        step.backward(nn.functional.mse_loss(model(batch[0]), target, reduction="sum"), count=len(batch[0]))

    train(
        model,
        sgd(model),
        inner=inner,
        before=lambda run: run.on_apply(average),
        evaluated=lambda x, _: {"teacher": teacher(x).sum(dim=0)},
        extra={"teacher": teacher},
    )


class Annealed(nn.Module):
    """Buffers that the script changes, and one that its forward pass moves in evaluations, too."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature: torch.Tensor
        self.weight: torch.Tensor
        self.seen: torch.Tensor
        self.rare: torch.Tensor
        self.register_buffer("temperature", torch.tensor(1.0))
        self.register_buffer("weight", torch.ones(FEATURES))
        self.register_buffer("seen", torch.tensor(0.0))
        self.register_buffer("rare", torch.tensor(0))
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if self.training and bool(x[0, 0] > 0):
            self.rare += 1
        scores: torch.Tensor = self.out(x * self.weight / (1 + 0.01 * self.seen + 0.1 * self.rare)) / self.temperature
        return scores


@case
def buffers_that_the_script_assigns_anew(train: Training) -> None:
    """In on_apply: the first share of each rank saw the new value, and every later one the old. And between steps."""
    model = Annealed()

    def anneal(run: Any, step: Any) -> None:
        model.temperature = model.temperature * 0.9

    def after(run: Any, step: Any) -> None:
        model.weight = model.weight + 1e-3 * step.sums["correct"]
        run.evaluate(points(13), lambda x, _: {"n": model(x).sum(dim=0)}, batch_size=2)

    train(
        model,
        sgd(model),
        before=lambda run: run.on_apply(anneal),
        after=after,
        evaluated=lambda x, _: {"scores": model(x).sum(dim=0)},
        buffers={"rare": "first", "seen": "agree"},
    )

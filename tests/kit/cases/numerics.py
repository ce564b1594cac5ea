"""Cases about parameters and what trains them: optimizers, schedules, dtypes, layouts, who uses which parameter."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

import elastic
from tests.kit.cases.training import (
    CLASSES,
    FEATURES,
    Points,
    Training,
    adamw,
    also_fast,
    case,
    images,
    network,
    sgd,
)


@case
def dropout_adamw_clipping(train: Training) -> None:
    model = network(dropout=0.3)
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1), clip_grad_norm=0.5)


@case
def dropout_in_seven_shares(train: Training) -> None:
    model = network(dropout=0.3)
    train(model, adamw(model), virtual_workers=7, clip_grad_norm=0.5)


@also_fast
def momentum_and_nesterov(train: Training) -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01))


@case
def fused_adamw(train: Training) -> None:
    model = network()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True))


@also_fast
def one_cycle(train: Training) -> None:
    model = network()
    optimizer = sgd(model)
    train(model, optimizer, scheduler=lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10))


@case
def lambda_lr(train: Training) -> None:
    model = network()
    optimizer = adamw(model)
    train(model, optimizer, scheduler=lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step))


class Tied(nn.Module):
    """One matrix reads tokens in and out, and one layer is used twice: its gradient has two parts in each share."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 8)
        self.inner = nn.Linear(8, 8)
        self.out = nn.Linear(8, CLASSES, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.gt(0).long() + x.gt(1).long()
        hidden = torch.tanh(self.inner(self.embedding(tokens)))
        scores: torch.Tensor = self.out(torch.tanh(self.inner(hidden)).mean(dim=1))
        return scores


@also_fast
def weight_tying_and_a_layer_used_twice(train: Training) -> None:
    model = Tied()
    train(model, adamw(model))


class Branches(nn.Module):
    """One branch or the other, as the examples say, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.branches[int(x[0, 0] > 0.8)](x)
        return scores


@case
def unused_in_some_shares_and_in_all(train: Training) -> None:
    """Weight decay must not touch what no share used: its gradient is None and not zero."""
    model = Branches()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1))


@also_fast
def frozen(train: Training) -> None:
    model = network()
    model[0].requires_grad_(False)
    train(model, adamw(model))


@case
def unfrozen_and_frozen_midway(train: Training) -> None:
    model = network()
    model[0].requires_grad_(False)

    def thaw(run: elastic.Run, step: elastic.Step) -> None:
        model[0].requires_grad_(step.index >= 1)
        model[4].requires_grad_(step.index < 3)

    train(model, adamw(model), after=thaw)


@case
def bf16(train: Training) -> None:
    model = network(dropout=0.1).to(torch.bfloat16)

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        loss = F.cross_entropy(model(batch[0].bfloat16()).float(), batch[1], reduction="sum")
        step.backward(loss, count=len(batch[1]))
        step.add(loss=loss)

    train(model, adamw(model), inner=inner, micro_batch_size=2, clip_grad_norm=1.0)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8).to(torch.bfloat16)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, CLASSES).to(torch.float16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(torch.tanh(self.middle(self.first(x.bfloat16()).float())).half())
        return scores


@case
def bf16_fp16_and_fp32_parameters(train: Training) -> None:
    model = Mixed()
    train(model, sgd(model))


@case
def float64(train: Training) -> None:
    model = network(dropout=0.1).double()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        loss = F.cross_entropy(model(batch[0].double()), batch[1], reduction="sum")
        step.backward(loss, count=len(batch[1]))

    train(model, adamw(model), inner=inner, clip_grad_norm=0.5)


@also_fast
def several_buckets(train: Training) -> None:
    """Buckets of 4 KiB: larger layers have one of their own, smaller ones share; all but the first leave early."""
    model = network(width=48)
    train(model, adamw(model), bucket_bytes=4096)


@case
def channels_last(train: Training) -> None:
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(), nn.Linear(64, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub misses it

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        x = batch[0].contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(x), batch[1], reduction="sum")
        step.backward(loss, count=len(batch[1]))

    train(model, sgd(model), dataset=images(), inner=inner)


class Odd(nn.Module):
    """A number without dimensions, an empty parameter, a transposed one, and one with a broadcast gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.turned = nn.Parameter(torch.randn(CLASSES, FEATURES).t())
        self.offset = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.turned * self.scale + self.offset.sum() * x.mean() + self.empty.sum()


@case
def parameters_of_odd_shapes(train: Training) -> None:
    model = Odd()
    train(model, adamw(model), clip_grad_norm=2.0)


class Recomputed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.2), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(12, CLASSES)
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self._reentrant)
        scores: torch.Tensor = self.last(x)
        return scores


@case
def activation_checkpointing(train: Training) -> None:
    model = Recomputed(reentrant=False)
    train(model, adamw(model))


@case
def reentrant_checkpointing_without_overlap(train: Training) -> None:
    model = Recomputed(reentrant=True)
    train(model, adamw(model), overlap=False)


class Attention(nn.Module):
    """A small transformer: its softmax, layer norm and embedding are where kernels differ in how they add."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=24, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.layer(self.embedding(x.clamp(-1.9, 1.9).add(2).long())).mean(dim=1))
        return scores


@also_fast
def transformer(train: Training) -> None:
    """With SGD: the bias of attention's keys has a gradient of rounding errors alone, which Adam would blow up."""
    model = Attention()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), clip_grad_norm=1.0, bucket_bytes=2048)


@case
def gradient_penalty(train: Training) -> None:
    """A gradient inside the loss: autograd runs twice, and only the second time counts."""
    model = network()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        x = batch[0].requires_grad_()
        scores = model(x)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        loss = F.cross_entropy(scores, batch[1], reduction="sum") + slope.square().sum()
        step.backward(loss, count=len(batch[1]))

    train(model, adamw(model), inner=inner)


@case
def loss_scaling(train: Training) -> None:
    model = network(dropout=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    train(model, adamw(model), scaler=scaler, clip_grad_norm=0.5)


@case
def a_step_that_the_scaler_skips(train: Training) -> None:
    """One share's loss is infinite in step 1: no worker steps its optimizer, and the scale falls everywhere."""
    model = network()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        loss = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        if step.index == 1 and bool((batch[0][:, 0] > 1).any()):
            loss = loss * float("inf")
        step.backward(loss, count=len(batch[1]))

    train(model, adamw(model), inner=inner, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))


@case
def noise_in_the_dataset(train: Training) -> None:
    model = network()
    train(model, adamw(model), dataset=Points(noisy=True))


@case
def noise_in_the_dataset_read_by_loader_processes(train: Training) -> None:
    model = network()
    train(model, adamw(model), dataset=Points(noisy=True), num_workers=2)

"""Cases about what is trained: networks that take turns, groups that join, hooks, penalties on gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import elastic
from tests.kit.cases.training import CLASSES, FEATURES, Training, adamw, case, classify, network

BOUND = 0.05


def _two_networks() -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
    models: dict[str, nn.Module] = {"generator": nn.Linear(FEATURES, FEATURES), "critic": nn.Linear(FEATURES, 1)}
    return models, {name: torch.optim.Adam(model.parameters(), lr=1e-2) for name, model in models.items()}


@case
def two_networks_take_turns_and_the_critics_weights_are_clipped(train: Training) -> None:
    """requires_grad is set between steps, and the weights are clipped in the update: WGAN as it is carried."""
    models, optimizers = _two_networks()

    def turn(run: elastic.Run, index: int) -> None:
        models["critic"].requires_grad_(index % 3 != 2)
        models["generator"].requires_grad_(index % 3 == 2)

    def clip(run: elastic.Run, step: elastic.Step) -> None:
        for parameter in models["critic"].parameters():
            parameter.data.clamp_(-BOUND, BOUND)

    def before(run: elastic.Run) -> None:
        run.on_apply(clip)
        turn(run, 0)

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        made = models["generator"](torch.randn_like(batch[0]))
        loss = -models["critic"](made).sum() if step.index % 3 == 2 else models["critic"](made - batch[0]).sum()
        step.backward(loss, count=len(batch[0]))

    train(models, optimizers, inner=inner, before=before, after=lambda run, step: turn(run, step.index + 1))


@case
def two_networks_in_one_body_with_a_penalty(train: Training) -> None:
    """WGAN-GP in one pass: the critic is frozen while the generator's loss is made, and unfrozen in the same body."""
    models, optimizers = _two_networks()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        made = models["generator"](torch.randn_like(batch[0]))
        models["critic"].requires_grad_(False)
        generated = -models["critic"](made).sum()
        models["critic"].requires_grad_(True)
        between = (0.5 * made.detach() + 0.5 * batch[0]).requires_grad_()
        (slope,) = torch.autograd.grad(models["critic"](between).tanh().sum(), between, create_graph=True)
        criticised = models["critic"](made.detach()).sum() - models["critic"](batch[0]).sum()
        penalty = (slope.norm(dim=1) - 1).square().sum()
        step.backward(generated + criticised + 10 * penalty, count=len(batch[0]))

    train(models, optimizers, inner=inner)


@case
def layers_thaw_with_groups_of_their_own(train: Training) -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def thaw(run: elastic.Run, step: elastic.Step) -> None:
        if step.index == 1:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3})
        if step.index == 3:
            optimizer.param_groups[0]["lr"] *= 0.5

    train(model, optimizer, after=thaw)


@case
def a_module_joins(train: Training) -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.norm = nn.Linear(FEATURES, CLASSES), nn.Module()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.base(x)
            return scores + self.norm(x) if isinstance(self.norm, nn.Sequential) else scores

    model = Adapted()
    optimizer = adamw(model)

    def grow(step: int) -> None:
        if step > 1:
            model.norm = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES))

    def after(run: elastic.Run, step: elastic.Step) -> None:
        if step.index == 1:
            grow(2)
            optimizer.add_param_group({"params": list(model.norm.parameters())})

    train(model, optimizer, after=after, rebuild=grow)


@case
def hooks_registered_when_the_run_has_begun(train: Training) -> None:
    model = network()

    def halve(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)

    def register(run: elastic.Run) -> None:
        for number, parameter in enumerate(model.parameters()):
            if number % 2:
                parameter.register_post_accumulate_grad_hook(halve)  # type: ignore[no-untyped-call]
            else:
                parameter.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))  # type: ignore[no-untyped-call]

    train(model, adamw(model), before=register, inner=_twice)


def _twice(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
    """With weight decay as a second term, as scripts add it by hand."""
    if step.index % 2:
        classify(run, step, batch)
        return
    model = run.model
    decay = torch.stack([p.square().sum() for p in model.parameters()]).sum()
    loss = F.cross_entropy(model(batch[0]), batch[1], reduction="sum") + 1e-3 * decay
    step.backward(loss, count=len(batch[0]))

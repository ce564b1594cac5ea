"""Cases about the loop: what scripts do in it, how batches end, what is summed, how a run stops."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

import elastic
from tests.kit.cases.training import (
    CLASSES,
    FEATURES,
    Points,
    Training,
    adamw,
    also_fast,
    case,
    classify,
    network,
    points,
    sgd,
)


@also_fast
def micro_batches(train: Training) -> None:
    model = network()
    train(model, adamw(model), micro_batch_size=1)


@case
def micro_batches_with_dropout(train: Training) -> None:
    model = network(dropout=0.3)
    train(model, adamw(model), micro_batch_size=2)


@case
def two_models_and_an_update_of_ones_own(train: Training) -> None:
    """As a GAN has it: two losses in one backward pass, and an update that steps one optimizer every other step."""
    models = {"maker": nn.Linear(4, FEATURES), "judge": network(dropout=0.1)}
    optimizers = {"maker": adamw(models["maker"]), "judge": sgd(models["judge"])}

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        x, y = batch
        made = models["maker"](torch.randn(len(x), 4))
        loss = F.cross_entropy(models["judge"](x), y, reduction="sum") + models["judge"](made).square().sum()
        step.backward(loss, count=len(y))
        step.add(loss=loss)

    def update(run: elastic.Run, step: elastic.Step) -> None:
        assert step.count == 20 or step.last_of_epoch
        optimizers["judge"].step()
        if step.index % 2:
            for parameter in models["maker"].parameters():
                assert parameter.grad is not None
                parameter.grad.add_(torch.randn(parameter.shape), alpha=1e-3)
            optimizers["maker"].step()

    train(models, optimizers, inner=inner, apply=update)


@also_fast
def an_epoch_of_three_examples(train: Training) -> None:
    """One share has work, whatever the world size; the other ranks rest at every step."""
    model = network()
    train(model, adamw(model), dataset=points(3), epochs=3)


@also_fast
def carry(train: Training) -> None:
    model = network()
    train(model, sgd(model), last_batch="carry")


@also_fast
def drop(train: Training) -> None:
    model = network()
    train(model, sgd(model), last_batch="drop", epochs=3)


@case
def shares_of_one_example(train: Training) -> None:
    model = network(dropout=0.3)
    train(model, adamw(model), dataset=points(17), batch_size=7, virtual_workers=7)


@case
def averaged_weights(train: Training) -> None:
    model = network()
    averaged = AveragedModel(model, avg_fn=lambda average, now, _steps: average.lerp(now, 0.1))

    def before(run: elastic.Run) -> None:
        run.on_apply(lambda _run, _step: averaged.update_parameters(model))

    evaluated = lambda x, y: {"loss": F.cross_entropy(averaged(x), y, reduction="sum")}  # noqa: E731
    train(model, adamw(model), extra={"averaged": averaged}, before=before, evaluated=evaluated)


@also_fast
def shares_that_count_nothing(train: Training) -> None:
    """Masked tokens: a share may have none, and the divisor is what the whole step has."""
    model = network()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        x, y = batch
        kept = x[:, 0] > 0.5
        loss = (F.cross_entropy(model(x), y, reduction="none") * kept).sum()
        step.backward(loss, count=int(kept.sum()))
        step.add(loss=loss, kept=kept.sum())

    train(model, adamw(model), inner=inner)


@also_fast
def sums_of_many_kinds(train: Training) -> None:
    """Integers, floats, vectors, matrices, several calls for one name, and names that only some shares have."""
    model = network()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        x, y = batch
        classify(run, step, batch)
        step.add(n=len(y), big=2**40 + len(y), mean=float(x.mean()), per_feature=x.sum(dim=0), twice=1)
        step.add(twice=0.5, by_class=F.one_hot(y, CLASSES).sum(dim=0), flag=True, array=np.ones((2, 2)) / 3)
        if bool((x[:, 0] > 1).any()):
            step.add(rare=x[:, 0].max(), rarer_vector=x[0])
        if step.index == 2:
            step.add(late=1)

    train(model, adamw(model), inner=inner)


@case
def evaluation_while_training(train: Training) -> None:
    """An evaluation draws numbers, and takes part in what comes after it."""
    model = network(dropout=0.3)
    held_out = Points(23, noisy=True)

    def after(run: elastic.Run, step: elastic.Step) -> None:
        def measure(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            noise = torch.randn(()) * random.random() * np.random.rand()
            return {"loss": F.cross_entropy(model(x), y, reduction="sum"), "noise": noise, "n": len(y)}

        found = run.evaluate(held_out, measure, batch_size=5 if step.index % 2 else None)
        assert found["n"] == 23
        train.outcome.setdefault("evaluations", []).append([found["loss"], found["noise"]])
        run.optimizers["optimizer"].param_groups[0]["lr"] = 1e-2 / (1 + found["loss"]) * (1 + torch.rand(()).item())

    train(model, adamw(model), after=after, evaluated=lambda x, y: {"n": len(y), "scores": model(x).sum(dim=0)})


@case
def user_code_outside_the_shares_draws_and_changes_the_model(train: Training) -> None:
    model = network()

    def after(run: elastic.Run, step: elastic.Step) -> None:
        with torch.no_grad():
            first = next(model.parameters())
            first.add_(torch.randn(first.shape), alpha=1e-2 * random.random() * np.random.rand())

    train(model, adamw(model), after=after)


@case
def stopped_inside_the_inner_loop(train: Training) -> None:
    model = network()

    def inner(run: elastic.Run, step: elastic.Step, batch: Any) -> None:
        classify(run, step, batch)
        if step.index == 2 and bool((batch[0][:, 0] > 0.5).any()):  # in one share or another
            run.stop("an outlier")

    train(model, adamw(model), inner=inner)


@case
def stopped_between_steps(train: Training) -> None:
    model = network()

    def after(run: elastic.Run, step: elastic.Step) -> None:
        if step.index == 1:
            run.stop("enough")

    train(model, adamw(model), after=after)


@case
def a_long_epoch_cut_by_steps(train: Training) -> None:
    model = network(dropout=0.2)
    train(model, adamw(model), dataset=points(1000), steps=4, epochs=None)

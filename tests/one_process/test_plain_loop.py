"""A loop over run.batches() at one worker: the same updates as a loop without elastic, and as one over steps."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset, default_collate

import elastic
from elastic.data.data_plan import DataPlan
from tests.kit.arguments import grouped

EPOCHS, BATCH, SHARES = 2, 16, 4


def network() -> nn.Sequential:
    elastic.seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> Any:
    return F.cross_entropy(scores, labels)


def data(length: int = 40) -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    points = torch.randn(length, 6, generator=draw)
    return TensorDataset(points, points[:, :3].argmax(dim=1))


def run(url: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> elastic.Run:
    given: dict[str, Any] = {"dataset": data(), "batch_size": BATCH, "virtual_workers": SHARES, "epochs": EPOCHS}
    return elastic.Run(url, model=model, optimizer=optimizer, **grouped(given | options))


def close(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


def assert_goes_on_the_same(train: Callable[[Path, int | None], list[Any]], folder: Path) -> None:
    """Cut off after its fifth step, in the midst of an epoch, and in one piece."""
    whole = train(folder / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        train(folder / "cut", 5)
    assert train(folder / "cut", None) == whole


def without_elastic(clip: float = 0.5) -> nn.Module:
    """Whole batches, in the run's order."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    plan = DataPlan(dataset_length=40, batch_size=BATCH, virtual_workers=SHARES, seed=0, epochs=EPOCHS)
    points, labels = data().tensors
    for index in range(plan.total_steps):
        step = plan.step(index)
        chosen = torch.cat([torch.from_numpy(step.examples(share).indices) for share in range(len(step.sizes))])
        optimizer.zero_grad()
        cross_entropy(model(points[chosen]), labels[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
    return model


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("micro", [None, 2])
def test_it_is_the_loop_without_elastic(mode: str, micro: int | None, tmp_path: Path) -> None:
    """Short batches at the ends of epochs, and gradients that are clipped, included."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    with run(tmp_path, model, optimizer, scheduler=scheduler, mode=mode, micro_batch_size=micro) as training:
        for _ in training.epochs():
            for x, y in training.batches():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()

    assert close(model, without_elastic())


def test_epochs_steps_and_sums_are_counted(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    seen: list[tuple[int, float, bool]] = []
    epochs: list[int] = []
    with run(tmp_path, model, optimizer) as training:
        for epoch in training.epochs():
            epochs.append(epoch)
            for x, y in training.batches():
                training.add(examples=len(y))
                cross_entropy(model(x), y).backward()
                updating = training.updating
                optimizer.step()
                if training.stepped:
                    seen.append((training.sums["examples"], training.count, updating))
            assert training.step_index == 3 * (epoch + 1)

    assert epochs == [0, 1]
    assert seen == [(16, 16, True), (16, 16, True), (8, 8, True)] * 2


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """The epochs that are left, and of the first one the batches that are left."""

    def train(url: Path, until: int | None) -> tuple[nn.Module, list[int]]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        epochs: list[int] = []
        with run(url, model, optimizer, save_every=1) as training:
            for epoch in training.epochs():
                epochs.append(epoch)
                for x, y in training.batches():
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if training.stepped and training.step_index == until:
                        raise KeyboardInterrupt
        return model, epochs

    whole, _ = train(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", 4)
    resumed, epochs = train(tmp_path / "cut", None)

    assert epochs == [1]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def valid(batch: Any) -> Any:
    return (batch[1] != -100).sum()


def weights(batch: Any) -> Any:
    return WEIGHTS[batch[1][batch[1] != -100]].sum()


WEIGHTS = torch.tensor([1.0, 5.25, 0.3])
MEANS = {"tokens": (None, valid), "class weights": (WEIGHTS, weights)}


@pytest.mark.parametrize("kind", MEANS)
def test_what_the_loss_is_a_mean_over_is_told_and_count_makes_it_the_whole_batchs(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A share may hold none of it. Without count= the update would depend on V, and nothing was said."""
    weight, count = MEANS[kind]
    points, labels = data().tensors
    labels = torch.where(torch.arange(40) % 3 == 0, labels, -100)
    loss_of = nn.CrossEntropyLoss(weight=weight)
    arguments = {"dataset": TensorDataset(points, labels), "batch_size": 8, "virtual_workers": 4, "epochs": 1}
    counted: list[float] = []

    def train(url: Path, **options: Any) -> nn.Module:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with run(url, model, optimizer, **arguments, **options) as training:
            for x, y in training.batches():
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
                if training.stepped:
                    counted.append(training.count)
        return model

    reference = network()
    steps = torch.optim.SGD(reference.parameters(), lr=0.2)
    plan = DataPlan(dataset_length=40, batch_size=8, virtual_workers=4, seed=0, epochs=1)
    for index in range(plan.total_steps):
        step = plan.step(index)
        chosen = torch.cat([torch.from_numpy(step.examples(share).indices) for share in range(len(step.sizes))])
        steps.zero_grad()
        loss_of(reference(points[chosen]), labels[chosen]).backward()
        steps.step()
    model = train(tmp_path / "counted", count=count)
    assert sum(counted) == pytest.approx(float(count((points, labels))))
    assert close(model, reference)
    assert "is a mean over" not in capfd.readouterr().err
    train(tmp_path / "told")
    told = capfd.readouterr().err
    assert told.count("the loss is a mean over") == 1
    assert ("weight[batch[1]].sum()" if kind == "class weights" else "(batch[1] != -100).sum()") in told


class Padded(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Text, padded on the left: a causal model's loss compares what it gives for a word with the next one."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(8) + index) % 10
        return {"words": words, "labels": torch.where(torch.arange(8) < index % 2 * index % 5, -100, words)}


@pytest.mark.parametrize("shift", [0, 1])
def test_the_count_that_is_told_fits_the_batch(shift: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It was `batch[1]` of a dict, too, and of labels whose first is never compared."""

    def train(url: Path, **options: Any) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with run(url, model, optimizer, dataset=Padded(), batch_size=8, virtual_workers=4, epochs=1, **options) as one:
            for batch in one.batches():
                optimizer.zero_grad()
                scores = model(batch["words"])[:, : 8 - shift]
                F.cross_entropy(scores.flatten(0, 1), batch["labels"][:, shift:].flatten()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return capfd.readouterr().err

    (count,) = re.findall(
        r"next   data=Data\(count=(lambda batch: .*\.sum\(\))\), the targets", train(tmp_path / "told")
    )
    assert ("[:, 1:]" in count) == bool(shift)
    assert "is a mean over" not in train(tmp_path / "counted", count=eval(count))


def test_several_optimizers_step_in_one_update(tmp_path: Path) -> None:
    model = network()
    first, last = torch.optim.SGD(model[0].parameters(), lr=0.2), torch.optim.AdamW(model[2].parameters(), lr=0.01)
    optimizers = {"first": first, "last": last}
    with elastic.Run(
        tmp_path, model=model, optimizer=optimizers, dataset=data(), batch_size=16, virtual_workers=4, epochs=1
    ) as training:
        for x, y in training.batches():
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            first.step()
            assert not training.stepped
            last.step()

    assert training.step_index == 3


def test_an_optimizer_that_has_stepped_may_zero_its_gradients(tmp_path: Path) -> None:
    """`for optimizer in optimizers: optimizer.step(); optimizer.zero_grad()`, and so before scaler.update()."""
    by_scaler, at_once = network(), network()
    for model, scaler in ((by_scaler, torch.amp.GradScaler("cpu", init_scale=8.0)), (at_once, None)):
        optimizers = {str(i): torch.optim.SGD(model[i].parameters(), lr=0.2) for i in (0, 2)}
        name = "at once" if scaler is None else "by scaler"
        with elastic.Run(
            tmp_path / name,
            model=model,
            optimizer=optimizers,
            update=elastic.Update(scaler=scaler),
            dataset=data(),
            batch_size=16,
            virtual_workers=4,
            epochs=1,
        ) as training:
            for x, y in training.batches():
                loss = cross_entropy(model(x), y)
                (loss if scaler is None else scaler.scale(loss)).backward()
                for optimizer in optimizers.values():
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                    optimizer.zero_grad()
                if scaler is not None:
                    scaler.update()
        assert training.step_index == 3

    assert close(by_scaler, at_once)


def test_two_networks_may_be_trained_in_turns(tmp_path: Path) -> None:
    """What a step trains is settled before its batches: the one whose turn it is not gets no gradient."""
    model = network()
    optimizers = [torch.optim.AdamW(model[i].parameters(), lr=0.1) for i in (0, 2)]
    moved: list[list[bool]] = []
    with elastic.Run(
        tmp_path,
        model=model,
        optimizer={"first": optimizers[0], "last": optimizers[1]},
        dataset=data(),
        batch_size=16,
        virtual_workers=4,
        epochs=2,
    ) as training:
        weights = [next(model[i].parameters()) for i in (0, 2)]
        for step in training.steps():
            turn, before = step.index % 2, [weight.detach().clone() for weight in weights]
            for i in (0, 2):
                model[i].requires_grad_(i == 2 * turn)
            optimizers[turn].zero_grad()
            for x, y in step:
                cross_entropy(model(x), y).backward()
            optimizers[turn].step()
            moved.append(
                [not torch.equal(next(model[i].parameters()), was) for i, was in zip((0, 2), before, strict=True)]
            )

    assert moved == [[True, False], [False, True]] * 3


def closure_for(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any) -> Callable[[], Any]:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def test_a_closure_is_called_once_a_share(tmp_path: Path) -> None:
    models: list[nn.Module] = []
    for number, by_closure in enumerate((False, True)):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with run(tmp_path / str(number), model, optimizer) as training:
            for x, y in training.batches():
                closure = closure_for(model, optimizer, x, y)
                if by_closure:
                    assert optimizer.step(closure) is not None
                else:
                    closure()
                    optimizer.step()
        models.append(model)

    one, other = models
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("scale", [2.0**10, 2.0**127])
def test_a_scaler_scales_and_skips_on_inf(scale: float, tmp_path: Path) -> None:
    """What overflows is skipped, the scale falls, and the step counts as one."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with run(tmp_path, model, optimizer, scaler=scaler) as training:
        for x, y in training.batches():
            optimizer.zero_grad()
            scaler.scale(cross_entropy(100 * model(x), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    assert training.step_index == 6
    assert (scaler.get_scale() < scale) == (scale > 2.0**100)


@pytest.mark.parametrize("how", ["a rate", "a schedule"])
def test_what_follows_from_the_step_may_be_set_in_every_body(how: str, tmp_path: Path) -> None:
    """As nanoGPT sets its rate. The schedule is told the next step's number, as the next step's bodies tell it."""

    def train(url: Path, in_body: bool) -> Any:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 0.5**at)
        with run(url, model, optimizer, scheduler=scheduler) as training:
            for x, y in training.batches():
                if in_body and how == "a rate":
                    optimizer.param_groups[0]["lr"] = 0.5 ** (1 + training.step_index)
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                if in_body and how == "a schedule":
                    scheduler.step(training.step_index)
                elif not in_body and training.stepped:
                    optimizer.param_groups[0]["lr"] = 0.5 ** (1 + training.step_index)
        return [parameter.tolist() for parameter in model.parameters()]

    assert train(tmp_path / "in the body", True) == train(tmp_path / "between steps", False)


@pytest.mark.parametrize("when", ["before the batches", "behind them", "every second step"])
def test_a_schedule_may_be_stepped_once_an_epoch(when: str, tmp_path: Path) -> None:
    """Also where a run goes on in the middle of an epoch, whose beginning its script passes again."""

    def train(url: Path, until: int | None) -> Any:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        with run(url, model, optimizer, scheduler=scheduler, save_every=1, epochs=3) as training:
            for _ in training.epochs():
                if when == "before the batches":
                    scheduler.step()
                for x, y in training.batches():
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if when == "every second step" and training.step_index % 2 == 0:
                        scheduler.step()
                    if training.stepped and training.step_index == until:
                        raise KeyboardInterrupt
                if when == "behind them":
                    scheduler.step()
        return scheduler.last_epoch, [parameter.tolist() for parameter in model.parameters()]

    whole = train(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", 5)

    assert whole[0] == (4 if when == "every second step" else 3)
    assert train(tmp_path / "cut", None) == whole


def test_of_two_runs_in_one_process_any_ends_first(tmp_path: Path) -> None:
    """A benchmark that takes turns."""
    models = network(), network()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.2) for model in models]
    first, second = (run(tmp_path / str(i), models[i], optimizers[i]) for i in range(2))
    with first, second:
        for training, model, optimizer in zip((first, second), models, optimizers, strict=True):
            for x, y in training.batches():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()

    assert (first.step_index, second.step_index) == (6, 6)


def test_functions_of_on_apply_are_part_of_the_update(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    training = run(tmp_path, model, optimizer)
    called: list[int] = []
    training.on_apply(lambda _, step: called.append(step.index))
    with training:
        for x, y in training.batches():
            cross_entropy(model(x), y).backward()
            optimizer.step()

    assert called == list(range(6))


@pytest.mark.parametrize("shape", [(), (2,)], ids=["a number", "several"])
def test_a_share_that_counts_nothing_adds_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Its mean is 0/0. The documented `run.add(loss=loss.detach() * n)` would make the whole step's loss no number, and
    on_bad= end the run over a batch that is well."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    points, labels = data().tensors
    labels = torch.where(torch.arange(40) == 7, labels, -100)
    counted: Callable[[Any], int] = lambda batch: int((batch[1] != -100).sum())  # noqa: E731  # as the page has it
    losses: list[Any] = []
    options: dict[str, Any] = {"dataset": TensorDataset(points, labels), "batch_size": 40, "epochs": 1}
    with run(tmp_path, model, optimizer, count=counted, on_bad="stop", **options) as training:
        for x, y in training.batches():
            loss: Any = cross_entropy(model(x), y)
            training.add(loss=loss.detach().expand(shape) * counted((x, y)), examples=len(y))
            loss.backward()
            optimizer.step()
            if training.stepped:
                losses.append(training.sums["loss"])
                assert training.sums["examples"] == 40

    whole = network()
    expected = cross_entropy(whole(points), labels)
    expected.backward()
    torch.optim.SGD(whole.parameters(), lr=0.2).step()
    assert torch.allclose(torch.as_tensor(losses[0]).double(), expected.double().expand(shape))
    assert close(model, whole)


def test_a_loss_that_is_no_number_is_seen_where_something_counts(tmp_path: Path) -> None:
    """Nothing is swept aside but the mean over nothing."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with run(tmp_path, model, optimizer, count=lambda batch: len(batch[1])) as training:
        for x, y in training.batches():
            training.add(loss=float("nan"))
            cross_entropy(model(x), y).backward()
            optimizer.step()
            if training.stepped:
                assert training.sums["loss"] != training.sums["loss"]


def _lowers_rate(model: Any, optimizer: torch.optim.Optimizer, counted: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def _thaws(model: Any, optimizer: torch.optim.Optimizer, counted: Any) -> None:
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.05})


def _counts(model: Any, optimizer: torch.optim.Optimizer, counted: Any) -> None:
    counted.step()


def _cools(model: Any, optimizer: torch.optim.Optimizer, counted: Any) -> None:
    model.temperature = model.temperature * 0.5


def _moves_buffer(model: Any, optimizer: torch.optim.Optimizer, counted: Any) -> None:
    model.offset.mul_(0.5)


@pytest.mark.parametrize("change", [_lowers_rate, _thaws, _counts, _cools, _moves_buffer])
def test_the_beginning_of_an_epoch_is_passed_once(change: Callable[..., None], tmp_path: Path) -> None:
    """Where a run goes on in the middle of an epoch its script passes the beginning again, and all is as it came."""

    def train(url: Path, until: int | None) -> list[Any]:
        model: Any = network()
        model[0].requires_grad_(change is not _thaws)
        model.temperature = 1.0
        model.register_buffer("offset", torch.ones(()))
        trained = model[2] if change is _thaws else model
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.2, momentum=0.9)
        other = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        counted = torch.optim.lr_scheduler.StepLR(other, 1, gamma=0.5)
        with run(url, model, optimizer, extra={"counted": counted}, save_every=1, epochs=3) as training:
            for epoch in training.epochs():
                if epoch == 1:
                    change(model, optimizer, counted)
                for x, y in training.batches():
                    optimizer.zero_grad()
                    scores = model(x) * model.temperature + model.offset * model[2].bias * other.param_groups[0]["lr"]
                    cross_entropy(scores, y).backward()
                    optimizer.step()
                    if training.stepped and training.step_index == until:
                        raise KeyboardInterrupt
        return [parameter.tolist() for parameter in model.parameters()]

    assert_goes_on_the_same(train, tmp_path)


class _Kept:
    """An object of one's own, which is given another tensor, and not another value of it."""

    def __init__(self) -> None:
        self.scale = torch.ones(3)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


@pytest.mark.parametrize("what", ["rate", "momentum", "buffer", "scheduler", "tensor", "tensor, each epoch"])
def test_what_is_written_between_with_and_the_loop_is_put_back_on_a_resume(what: str, tmp_path: Path) -> None:
    """It was written again, to a state that was past it; a new tensor in extra= was also at an epoch's beginning."""

    def train(url: Path, until: int | None) -> list[Any]:
        model, kept = network(), _Kept()
        model.register_buffer("offset", torch.ones(()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7)
        with run(url, model, optimizer, scheduler=scheduler, extra={"kept": kept}, save_every=1, epochs=3) as training:
            if what == "rate":
                optimizer.param_groups[0]["lr"] = 0.1
            elif what == "momentum":
                optimizer.state.clear()
            elif what == "buffer":
                model.get_buffer("offset").fill_(2.0)
            elif what == "scheduler":
                scheduler.last_epoch = 1
            elif what == "tensor":
                kept.scale = torch.full((3,), 2.0)
            for _ in training.epochs():
                if what == "tensor, each epoch":
                    kept.scale = torch.full((3,), 2.0 + training.step_index)
                for x, y in training.batches():
                    optimizer.zero_grad()
                    cross_entropy(model(x) * kept.scale + model.get_buffer("offset") * x[:, :3], y).backward()
                    optimizer.step()
                    scheduler.step()
                    if training.stepped:
                        model.get_buffer("offset").mul_(0.9)
                        kept.scale = kept.scale * 0.9
                    if training.stepped and training.step_index == until:
                        raise KeyboardInterrupt
        return [parameter.tolist() for parameter in model.parameters()]

    assert_goes_on_the_same(train, tmp_path)


@pytest.mark.parametrize("by_steps", [False, True])
def test_weights_written_between_with_and_the_loop_are_refused_at_the_first_start(
    by_steps: bool, tmp_path: Path
) -> None:
    model: Any = network()
    with run(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1)) as training:
        model[2].weight.data.mul_(0.5)
        model[0].weight.data.mul_(1.0)  # reached, and not changed
        loop = iter(training if by_steps else training.epochs())
        with pytest.raises(elastic.StepError, match=r"between `with .*` and its loop .* wrote to weights: 2.weight\n"):
            next(loop)


def test_weights_that_the_beginning_of_an_epoch_changes_are_refused_in_its_midst(tmp_path: Path) -> None:
    def train(until: int | None) -> None:
        model: Any = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with run(tmp_path, model, optimizer, save_every=1, epochs=3) as training:
            for epoch in training.epochs():
                if epoch == 1:
                    model[0].weight.data.mul_(0.5)
                for x, y in training.batches():
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if training.stepped and training.step_index == until:
                        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(5)
    with pytest.raises(elastic.StepError, match=r"at the beginning of epoch 1, which this worker comes into at step 4"):
        train(None)


class _Noisy(nn.Module):
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.inner, self.generator = network(), generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.inner(x)
        return scores * (1 + 0.3 * _drawn(self.generator)) if self.training else scores


class _Jitters:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, examples: list[Any]) -> Any:
        x, y = default_collate(examples)
        return x + _drawn(self.generator), y


class _Corrected(torch.optim.Optimizer):
    """Its count of steps is an attribute, as in many that people write."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] / (1 - 0.5**self.steps) * parameter.grad)


def _drawn(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.randn((), generator=generator))
    return float(generator.normal() if isinstance(generator, np.random.Generator) else generator.gauss(0, 1))


@pytest.mark.parametrize("kept", ["torch", "numpy", "random", "collate", "optimizer"])
def test_what_models_and_collate_functions_draw_goes_on_and_what_an_optimizer_counts_is_refused(
    kept: str, tmp_path: Path
) -> None:
    """Generators of their own draw by place; a count in an attribute is no state, and shows in the weights."""

    def train(url: Path, until: int | None) -> list[Any]:
        generators: dict[str, Callable[[], Any]] = {
            "torch": lambda: torch.Generator().manual_seed(1),
            "numpy": lambda: np.random.default_rng(1),
            "random": lambda: random.Random(1),
        }
        model = _Noisy(generators[kept]()) if kept in generators else network()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.2)
        if kept == "optimizer":
            optimizer = _Corrected(model.parameters())
        options: dict[str, Any] = {"collate_fn": _Jitters()} if kept == "collate" else {}
        with run(url, model, optimizer, save_every=1, epochs=3, **options) as training:
            for x, y in training.batches():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                if training.stepped and training.step_index == until:
                    raise KeyboardInterrupt
        return [parameter.tolist() for parameter in model.parameters()]

    if kept == "optimizer":
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "cut", 5)
        for _ in range(2):  # the first one has written nothing
            with pytest.raises(
                elastic.IdentityMismatch, match="gives the same gradients, and its update other weights"
            ):
                train(tmp_path / "cut", None)
        return
    assert_goes_on_the_same(train, tmp_path)


class _Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0
        self.out = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(x) / self.temperature


class _Says(_Tempered):
    def get_extra_state(self) -> dict[str, float]:
        return {"temperature": self.temperature}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.temperature = state["temperature"]


@pytest.mark.parametrize("kind", [_Says, _Tempered])
def test_a_module_s_extra_state_goes_on_and_a_plain_attribute_is_refused(kind: type[_Tempered], tmp_path: Path) -> None:
    """It changes behind steps, and at the beginning of an epoch, which whoever goes on in its midst comes to again."""

    def train(url: Path, until: int | None) -> list[Any]:
        elastic.seed(0)
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        with run(url, model, optimizer, save_every=1, epochs=3) as training:
            for _ in training.epochs():
                model.temperature *= 1.5
                for x, y in training.batches():
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if training.stepped:
                        model.temperature *= 0.9
                        if training.step_index == until:
                            raise KeyboardInterrupt
        return [model.temperature, *(parameter.tolist() for parameter in model.parameters())]

    if kind is _Says:
        assert_goes_on_the_same(train, tmp_path)
        return
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", 5)
    with pytest.raises(elastic.IdentityMismatch, match="reads the same, and gives other gradients than before"):
        train(tmp_path / "cut", None)


def test_of_an_update_that_is_torn_it_is_said_so(tmp_path: Path) -> None:
    model = network()
    optimizers = {str(i): torch.optim.SGD(model[i].parameters(), lr=0.2) for i in (0, 2)}
    training = elastic.Run(
        tmp_path, model=model, optimizer=optimizers, dataset=data(), batch_size=16, virtual_workers=1, epochs=1
    )

    def train() -> None:
        with training:
            for x, y in training.batches():
                cross_entropy(model(x), y).backward()
                optimizers["0"].step()
                optimizers["2"].zero_grad()

    with pytest.raises(elastic.StepError, match="'0' has stepped: the update is torn"):
        train()

"""Training scripts that keep something of their own, each as a user would write it: python kept.py NAME.

tests/processes/test_check_finds.py says of each what `elastic check` makes of it. What they share is what their users'
scripts would have alike: a small model, 48 points, two steps an epoch.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return"
# Users' scripts have no types, and torch none for backward().

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

import elastic

Script = Callable[[], object]
SCRIPTS: dict[str, Script] = {}


def script(main: Script) -> Script:
    SCRIPTS[main.__name__] = main
    return main


def points() -> TensorDataset:
    x = torch.randn(48, 4)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))


def run_of(model: nn.Module, dataset: Any = None, optimizer: Any = None, **given: Any) -> elastic.Run:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    named: dict[str, Any] = {"batch_size": 24, "virtual_workers": 4, "epochs": 9} | given
    return elastic.Run("runs/kept", model=model, optimizer=optimizer, dataset=dataset or points(), **named)


def fit(
    model: nn.Module, dataset: Any = None, between: Callable[[elastic.Run], object] | None = None, **given: Any
) -> None:
    """The loop of all scripts that keep nothing in it. between: what is done once a step is applied"""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, dataset, optimizer, **given) as run:
        for _ in run.epochs():
            for x, y in run.batches():
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                if between is not None and run.stepped:
                    between(run)


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module, weight: float = 0.1) -> None:
    for mine, other in zip(average.parameters(), model.parameters(), strict=True):
        mine.lerp_(other, weight)


# What a module keeps.


@script
def running_mean_in_an_attribute() -> None:
    """Of the module's input, and no buffer."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.layers = torch.zeros(4), layers()

        def forward(self, x: torch.Tensor) -> Any:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
            return self.layers(x - self.mean)

    fit(Centred())


@script
def hidden_state_handed_on_by_the_loop() -> None:
    cell, out, hidden = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 2), None
    model = nn.ModuleDict({"cell": cell, "out": out})
    optimizer = torch.optim.AdamW(model.parameters())
    with run_of(model, optimizer=optimizer) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            found, hidden = cell(x.unsqueeze(-1), hidden)
            F.cross_entropy(out(found[:, -1]), y).backward()
            hidden = hidden.detach()
            optimizer.step()


@script
def temperature_in_an_attribute() -> None:
    """Annealed once a step: a worker that joins begins at 1, and so does a resume."""

    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.temperature = layers(), 1.0

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers(x) / self.temperature

    model = Tempered()
    fit(model, between=lambda run: setattr(model, "temperature", model.temperature * 0.9))


@script
def temperature_in_the_extra_state() -> None:
    """The same, as torch lets a module say what its state is."""

    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.temperature = layers(), 1.0

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers(x) / self.temperature

        def get_extra_state(self) -> Any:
            return {"temperature": self.temperature}

        def set_extra_state(self, state: Any) -> None:
            self.temperature = state["temperature"]

    model = Tempered()
    fit(model, between=lambda run: setattr(model, "temperature", model.temperature * 0.9))


@script
def temperature_by_the_own_loss() -> None:
    """Each worker sets it by the loss of its own last share."""
    model, scale = layers(), 1.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, optimizer=optimizer) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x) * scale, y)
            loss.backward()
            optimizer.step()
            if run.stepped:
                scale = 1.0 + loss.item()


@script
def momentum_encoder_in_the_model() -> None:
    """Its forward pass moves a frozen copy of a layer."""

    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> Any:
            follow(self.key, self.query)
            return self.query(x) * self.key(x)

    fit(Queue())


@script
def caches_and_last_inputs() -> None:
    """As a vision transformer notes the size of its last image, and a mixture of experts its balance."""

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.calls = layers(), 0
            self.first: Any = self.layers[0]
            self.table: Any = None

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            self.last, self.size, self.scale = x.detach(), tuple(x.shape), float(x[0, 0])
            self.penalty = (self.first.weight * x[0]).sum()
            if self.table is None:
                self.table = torch.arange(3.0)
            self.register_buffer("positions", torch.arange(len(x)), persistent=False)
            return self.layers(x) + 0 * self.scale

    fit(Noting())


# Other modules, and averages of weights.


def distilled(*, average: Callable[[elastic.Run, nn.Module, nn.Module], object], **given: Any) -> None:
    model = layers()
    teacher = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    extra = {"extra": {"teacher": teacher}} if given.pop("handed", False) else {}
    with run_of(model, optimizer=optimizer, **extra) as run:
        for _ in run.epochs():
            for x, y in run.batches():
                optimizer.zero_grad()
                scores = model(x)
                (F.cross_entropy(scores, y) + (scores - teacher(x)).square().mean()).backward()
                optimizer.step()
                average(run, teacher, model)


@script
def teacher_that_each_body_moves() -> None:
    def average(run: elastic.Run, teacher: nn.Module, model: nn.Module) -> None:
        for mine, other in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.9).add_(other.data, alpha=0.1)

    distilled(average=average)


@script
def teacher_that_was_handed_over() -> None:
    distilled(average=lambda run, teacher, model: run.stepped and follow(teacher, model), handed=True)


@script
def teacher_in_a_loop_over_steps() -> None:
    model = layers()
    teacher = copy.deepcopy(model).eval()
    with run_of(model) as run:
        for step in run:
            for x, y in step:
                scores = model(x)
                loss = F.cross_entropy(scores, y) + (scores - teacher(x)).square().mean()
                step.backward(loss * len(y), count=len(y))
            follow(teacher, model)


@script
def critic_with_an_optimizer_of_its_own() -> None:
    model, critic = layers(), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    critics = torch.optim.SGD(critic.parameters(), lr=0.1)
    with run_of(model, optimizer=optimizer) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            scores = model(x)
            (F.cross_entropy(scores, y) + critic(scores).square().mean()).backward()
            optimizer.step()
            critics.step()


@script
def frozen_modules_and_copies_to_look_at() -> None:
    """A teacher that stays, a lazy probe, masks, a statistic, a copy that is evaluated, norms of gradients."""
    model, probe = layers(), nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    teacher, shown = nn.Linear(4, 2), copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, optimizer=optimizer) as run:
        for _ in run.epochs():
            masks = {name: one > 0 for name, one in model.named_parameters()}
            zeros = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
            for x, y in run.batches():
                optimizer.zero_grad()
                scores = model(x)
                (F.cross_entropy(scores, y) + (scores - teacher(x).detach()).square().mean()).backward()
                norms = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
                optimizer.step()
            shown.load_state_dict(model.state_dict())
            print(len(masks), len(zeros), len(norms), shown(torch.zeros(2, 4)).shape, type(probe).__name__)


@script
def average_that_only_the_end_reads() -> None:
    """No share depends on it: it is lost with a worker, and begins anew on a resume."""
    model = layers()
    average = copy.deepcopy(model).eval()
    fit(model, between=lambda run: follow(average, model))
    torch.save(average.state_dict(), "average.pt")


@script
def optimizer_made_anew_in_the_loop() -> None:
    """In a loop over steps the run steps the one it has: this one has no effect, the same at every world size."""
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, optimizer=optimizer) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            if step.index == 2:
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    print(optimizer.param_groups[0]["lr"])


# Variables of the loop.


@script
def counts_prints_and_bests() -> None:
    model, seen, done, losses, best, history = layers(), 0, 0, [], 9.0, dict[str, Any]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, optimizer=optimizer) as run:
        for epoch in run.epochs():
            total, last = 0.0, None
            for at, (x, y) in enumerate(run.batches()):
                optimizer.zero_grad()
                scores = model(x)
                loss = F.cross_entropy(scores, y)
                loss.backward()
                optimizer.step()
                seen += len(y)
                losses.append(loss.item())
                total += loss.item()
                last = scores.detach()
                if run.stepped:
                    done += 1
                    print(f"epoch {epoch} batch {at} step {done} seen {seen} loss {total / (at + 1):.4f}")
            best = min(best, total)
            history.setdefault("loss", []).append(total)
            print("best", best, last.shape if last is not None else None, len(losses))


class Meter:
    def __init__(self) -> None:
        self.sum, self.count = torch.zeros(()), 0

    def update(self, value: torch.Tensor) -> None:
        self.sum += value.detach()
        self.count += 1


@script
def warm_up_by_a_count_of_steps() -> None:
    """Counted where a step is applied, and begun anew by whoever comes later."""
    model, done = layers(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with run_of(model, optimizer=optimizer) as run:
        for x, y in run.batches():
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (done + 1) / 20)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if run.stepped:
                done += 1


@script
def break_by_a_count_of_batches() -> None:
    model, losses = layers(), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with run_of(model, optimizer=optimizer) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == 12:
                break


@script
def back_to_the_best_weights() -> None:
    """Where an epoch was worse, the weights of the best one are loaded again."""
    model, best, lowest = layers(), None, float("inf")
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    with run_of(model, optimizer=optimizer) as run:
        for _ in run.epochs():
            total = 0.0
            for x, y in run.batches():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                run.add(loss=loss.detach() * len(y))
                loss.backward()
                optimizer.step()
                if run.stepped:
                    total += float(run.sums["loss"] / run.count)
            if total < lowest:
                best, lowest = copy.deepcopy(model.state_dict()), total
            elif best is not None:
                model.load_state_dict(best)


@script
def evaluates_on_the_coordinator_and_forgets() -> None:
    """Dropout and batch norm are left in eval mode, there alone."""
    model = layers()

    def look(run: elastic.Run) -> None:
        if run.is_coordinator and run.step_index == 3:
            model.eval()

    fit(model, between=look)


@script
def meter_in_extra_of_the_own_loss() -> None:
    class Meter:
        total = 0.0

        def state_dict(self) -> dict[str, Any]:
            return {"total": self.total}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.total = state["total"]

    model, meter = layers(), Meter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, optimizer=optimizer, extra={"meter": meter}) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if run.stepped:
                meter.total += loss.item()


@script
def another_loader_read_on() -> None:
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    others = iter(DataLoader(TensorDataset(torch.randn(4000, 4)), batch_size=4))
    with run_of(model, optimizer=optimizer) as run:
        for x, y in run.batches():
            (other,) = next(others)
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + model(other).square().mean()).backward()
            optimizer.step()


# What a data set, or a collate function, keeps.


class Points(Dataset[Any]):
    """`keep` gives what is added to an example."""

    def __init__(self, keep: Callable[[Any, int], Any], **kept: Any) -> None:
        self.x = torch.randn(48, 4)
        self.y, self.keep = (self.x.sum(dim=1) > 0).long(), keep
        vars(self).update(kept)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + self.keep(self, index), self.y[index]


def fit_points(keep: Callable[[Any, int], Any], **kept: Any) -> None:
    fit(layers(), Points(keep, **kept))


@script
def harder_by_a_count_of_reads_in_a_loader() -> None:
    """Each of the loader's processes has a copy of its own."""

    def keep(data: Any, index: int) -> float:
        data.reads += 1
        return 0.001 * data.reads

    fit(layers(), Points(keep, reads=0), data=elastic.Data(num_workers=1))


@script
def augmented_once_and_cached() -> None:
    """Who reads an example first draws for all epochs."""

    def keep(data: Any, index: int) -> torch.Tensor:
        if index not in data.cache:
            data.cache[index] = torch.rand(4)
        return data.cache[index]

    fit_points(keep, cache={})


@script
def augmented_in_place() -> None:
    """A row of the stored data is a view of it."""

    def keep(data: Any, index: int) -> torch.Tensor:
        row: torch.Tensor = data.x[index]
        row += 0.1
        return row

    fit_points(keep)


@script
def counts_caches_and_opens_late() -> None:
    """A data set that logs its reads, caches what it reads, and opens its file when it is first asked."""

    def keep(data: Any, index: int) -> torch.Tensor:
        data.reads += 1
        data.log.append(index)
        data.file = data.file or object()
        if index not in data.cache:
            data.cache[index] = data.x[index].square()
        data.x[index] = data.x[index].clip(-9, 9)
        return data.cache[index] + torch.rand(4) + float(np.random.random())

    fit_points(keep, reads=0, log=[], file=None, cache={})


@script
def collates_with_a_generator_of_the_script_s() -> None:
    generator = np.random.default_rng(0)

    def collate(examples: list[Any]) -> Any:
        x, y = map(torch.stack, zip(*examples, strict=True))
        return x * generator.random(), y

    fit(layers(), data=elastic.Data(collate_fn=collate))


@script
def collates_and_takes_its_examples_apart() -> None:
    class Named(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return {"x": x, "y": y}

    def collate(examples: list[Any]) -> Any:
        return torch.stack([one.pop("x") for one in examples]), torch.stack([one.pop("y") for one in examples])

    fit(layers(), Named(*points().tensors), data=elastic.Data(collate_fn=collate))


@script
def hardness_set_in_each_body() -> None:
    """A curriculum by the current step; batches are read ahead of it."""
    model, data = layers(), Points(lambda data, index: data.hardness * torch.rand(4), hardness=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, data, optimizer) as run:
        for x, y in run.batches():
            data.hardness = run.step_index / 10  # type: ignore[attr-defined]
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@script
def hardness_raised_each_epoch() -> None:
    """By what it was, and not by the epoch's number."""
    model, data = layers(), Points(lambda data, index: data.hardness * torch.rand(4), hardness=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with run_of(model, data, optimizer) as run:
        for _ in run.epochs():
            data.hardness *= 1.5  # type: ignore[attr-defined]
            for x, y in run.batches():
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()


# Data that is another one in each process.


@script
def split_that_nobody_has_seeded() -> None:
    x = torch.randn(96, 4)
    whole = TensorDataset(x, (x.sum(dim=1) > 0).long())
    generator = torch.Generator()
    generator.seed()
    fit(layers(), random_split(whole, [0.5, 0.5], generator=generator)[0])


# With a trainer.


@script
def lightning_list_that_shares_fill() -> None:
    """Lightning's documented idiom for what an epoch's end reads."""
    lightning(outputs=True)


@script
def lightning_callback_that_counts_for_the_rate() -> None:
    import lightning as L

    class Keeping(L.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.steps += 1
            for group in trainer.optimizers[0].param_groups:
                group["weight_decay"] = 0.1 * self.steps

    lightning(Keeping())


def lightning(*callbacks: Any, outputs: bool = False) -> None:
    import lightning as L

    from elastic.integrations.lightning import ElasticStrategy

    class Module(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.outputs = layers(), list[torch.Tensor]()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            if outputs:
                self.outputs.append(loss.detach())
            return loss

        def on_train_epoch_end(self) -> None:
            if self.outputs:
                print(torch.stack(self.outputs).mean())
                self.outputs.clear()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    strategy = ElasticStrategy("runs/kept", virtual_workers=4)
    trainer = L.Trainer(max_epochs=9, accelerator="cpu", callbacks=[*callbacks], strategy=strategy, **quiet)
    trainer.fit(Module(), DataLoader(points(), batch_size=24, shuffle=True))


@script
def transformers_trainer_that_weighs_by_its_count() -> None:
    from elastic.integrations.transformers import ElasticTrainer

    class Counts(ElasticTrainer):
        batches = 0

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.batches += 1
            return super().compute_loss(*args, **kwargs) * (1 + self.batches / 100)

    transformers(Counts)


def transformers(kind: Any, *callbacks: Any) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    class Texts(Dataset[Any]):
        rows = torch.randint(0, 30, (32, 8), generator=torch.Generator().manual_seed(1))

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            return {"input_ids": self.rows[index], "labels": self.rows[index]}

    size = {"vocab_size": 30, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    quiet = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    kind(
        model=GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, eos_token_id=None)),
        args=TrainingArguments(output_dir="runs/out", num_train_epochs=6, **quiet),
        train_dataset=Texts(),
        callbacks=[*callbacks],
        elastic={"url": "runs/kept", "batch_size": 16, "virtual_workers": 4},
    ).train()


if __name__ == "__main__":
    elastic.seed(0)
    SCRIPTS[sys.argv[1]]()

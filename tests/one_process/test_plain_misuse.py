"""What a loop over run.batches() can get wrong is refused by name, and costs nothing of what was applied."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.errors import ConfigError, StepError
from tests.kit.arguments import grouped

SHARES, STEPS = 3, 4


class Plain:
    """A small run with two parts of a batch that a body may use: `body(loop, x, y)` is called for each."""

    def __init__(self, url: Path | str, **options: Any) -> None:
        elastic.seed(1)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.data: Any = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
        given: dict[str, Any] = {"dataset": self.data, "batch_size": 12, "virtual_workers": SHARES, "epochs": 1}
        things: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.run = elastic.Run(url, **grouped(things | given | {"save_every": 1} | options))

    others: Any

    def train(self, body: Callable[[Plain, torch.Tensor, torch.Tensor], None]) -> None:
        with self.run as run:
            for x, y in run.batches():
                body(self, x, y)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return F.cross_entropy(self.model(x), y)

    @property
    def state(self) -> str:
        return elastic_checkpoint.digest({"model": self.model, "optimizer": self.optimizer})


def good(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.optimizer.zero_grad()
    loop.loss(x, y).backward()
    loop.optimizer.step()
    loop.scheduler.step()


def no_backward(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.loss(x, y)
    loop.optimizer.step()


def no_step(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.loss(x, y).backward()


def accumulates(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    (loop.loss(x, y) / 4).backward()
    if loop.run.step_index % 4 == 3:
        loop.optimizer.step()


def zeroes_between(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.loss(x, y).backward()
    loop.optimizer.zero_grad()
    loop.optimizer.step()


def model_zeroes_between(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.loss(x, y).backward()
    loop.model.zero_grad()
    loop.optimizer.step()


def two_backwards(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.loss(x, y).backward()
    loop.loss(x, y).backward()
    loop.optimizer.step()


def steps_twice(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    good(loop, x, y)
    loop.optimizer.step()


def writes_weights(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    good(loop, x, y)
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.mul_(0.999)


def adds_late(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.loss(x, y).backward()
    loop.run.add(seen=len(y))
    loop.optimizer.step()


def sets_the_rate(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.optimizer.param_groups[0]["lr"] *= 0.9
    good(loop, x, y)


def schedules_by_its_batches(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    """As torch's example of CosineAnnealingWarmRestarts does, by enumerate."""
    loop.optimizer.zero_grad()
    loop.loss(x, y).backward()
    loop.optimizer.step()
    vars(loop)["batch"] = vars(loop).get("batch", -1) + 1
    loop.scheduler.step(vars(loop)["batch"])


def steps_another_optimizer(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    good(loop, x, y)
    torch.optim.SGD(loop.model.parameters(), lr=0.1).step()


def steps_a_network_of_its_own(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    """As a discriminator that was not handed over."""
    critic = vars(loop).setdefault("critic", nn.Linear(4, 1))
    its_optimizer = vars(loop).setdefault("its_optimizer", torch.optim.SGD(critic.parameters(), lr=0.1))
    critic(x).mean().backward()
    its_optimizer.step()
    good(loop, x, y)


def passes_again(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    good(loop, x, y)
    loop.loss(x, y)


def passes_again_where_it_stepped(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    good(loop, x, y)
    if loop.run.stepped:
        loop.loss(x, y)


def schedules_first(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.scheduler.step()
    loop.optimizer.zero_grad()
    loop.loss(x, y).backward()
    loop.optimizer.step()


def replaces_its_data(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    points, labels = loop.data.tensors
    loop.data.tensors = (points * 1.01, labels)
    good(loop, x, y)


MISUSES = [
    (schedules_first, "scheduler.step() of 'scheduler' was called before the backward pass of step 1, and not behind"),
    (no_backward, "ended without a backward pass for share 0 of step 1"),
    (no_step, "without step() of 'optimizer'"),
    (accumulates, "without step() of 'optimizer'"),
    (zeroes_between, "zero_grad() of 'optimizer' was called between the last backward pass of step 1"),
    (model_zeroes_between, "no parameter of optimizer 'optimizer' has a gradient"),
    (two_backwards, "a second backward pass began for share 0 of step 1"),
    (steps_twice, "a second time in step 1"),
    (writes_weights, "wrote to weights in step 1"),
    (adds_late, "after the backward pass"),
    (steps_another_optimizer, "a SGD that the run does not know steps 0.weight"),
    (steps_a_network_of_its_own, "a SGD that the run does not know steps in one body of the loop after another"),
    (passes_again, "moved buffers behind its backward pass, in step 1: 1."),
    (passes_again_where_it_stepped, "moved buffers behind its backward pass, in step 1: 1."),
    (sets_the_rate, "set options of optimizer 'optimizer' to other values in one share of step 1 than in the next"),
    (
        schedules_by_its_batches,
        "scheduler.step(1) of 'scheduler' was called in a body of step 1",
    ),
]


@pytest.mark.parametrize(("body", "match"), MISUSES, ids=[body.__name__ for body, _ in MISUSES])
def test_a_misuse_is_refused_by_name_and_costs_nothing(
    body: Callable[[Plain, torch.Tensor, torch.Tensor], None], match: str, tmp_path: Path
) -> None:
    """At the second step; repaired, the run goes on as if nothing had been."""

    def second(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        (good if loop.run.step_index == 0 else body)(loop, x, y)

    with pytest.raises(StepError, match=re.escape(match)) as raised:
        Plain(tmp_path / "run").train(second)
    assert "state  " in str(raised.value)
    assert "next   " in str(raised.value)

    resumed, undisturbed = Plain(tmp_path / "run"), Plain(tmp_path / "undisturbed")
    resumed.train(good)
    undisturbed.train(good)
    assert resumed.state == undisturbed.state


def test_a_body_that_changes_what_is_read_is_found_by_what_is_read(tmp_path: Path) -> None:
    loop = Plain(tmp_path / "run")
    before = loop.state
    with pytest.raises(StepError, match="share 2 of step 0 was read twice, by this worker, and the batches are not"):
        loop.train(replaces_its_data)
    assert loop.state == before


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"clip_grad_norm": 1.0}, r"Run\(update=Update\(clip_grad_norm="),
        ({"apply": lambda run, step: None}, r"Run\(update=Update\(apply="),
        ({"overlap": False}, r"Run\(compute=Compute\(overlap=False"),
        ({"count": 3}, "a function of a batch"),
    ],
)
def test_arguments_of_the_other_loop_are_refused(given: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        Plain(tmp_path, **given).train(good)


@pytest.mark.parametrize("given", [{"scheduler": None}, {"scheduler": None, "extra": {"other": nn.Linear(1, 1)}}])
def test_a_schedule_that_is_not_handed_over_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    """It would fall with every share, and begin anew where the run goes on."""
    with pytest.raises(ConfigError, match="'optimizer' has a StepLR that the run does not know"):
        Plain(tmp_path, **given).train(good)


@pytest.mark.parametrize("handed", ["in one", "in a chain", "each"])
def test_several_schedules_that_are_handed_over_are_known(handed: str, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = torch.optim.lr_scheduler
    both = [rates.LinearLR(optimizer, total_iters=2), rates.ExponentialLR(optimizer, 0.9)]
    scheduler: Any = dict(zip("ab", both, strict=True))
    if handed == "in one":
        scheduler = rates.SequentialLR(optimizer, [*both], milestones=[2])
    if handed == "in a chain":
        scheduler = rates.ChainedScheduler([*both])
    loop = Plain(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler)
    loop.model, loop.optimizer, loop.scheduler = model, optimizer, scheduler  # type: ignore[assignment]

    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        loop.loss(x, y).backward()
        optimizer.step()
        for one in scheduler.values() if handed == "each" else [scheduler]:
            one.step()

    loop.train(body)
    assert loop.run.step_index == STEPS


def test_one_script_has_one_kind_of_loop(tmp_path: Path) -> None:
    def both(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        next(iter(loop.run))

    with pytest.raises(ConfigError, match="one loop"):
        Plain(tmp_path).train(both)


def test_an_epoch_is_read_to_its_end(tmp_path: Path) -> None:
    loop = Plain(tmp_path, epochs=2)

    def breaks_off() -> None:
        with loop.run as run:
            for _ in run.epochs():
                for x, y in run.batches():
                    good(loop, x, y)
                    if run.stepped:
                        break

    with pytest.raises(StepError, match="has steps left"):
        breaks_off()


def test_a_look_at_the_first_batch_takes_it_from_its_step(tmp_path: Path) -> None:
    """It was a RuntimeError, "generator raised StopIteration"."""
    loop = Plain(tmp_path, epochs=2)

    def looks() -> None:
        with loop.run as run:
            for _ in run.epochs():
                next(iter(run.batches()))
                for x, y in run.batches():
                    good(loop, x, y)

    with pytest.raises(StepError, match=r"begun again in the middle of step 0: they were left at .*test_plain_misuse"):
        looks()


@pytest.mark.parametrize("ahead", [list, lambda batches: zip(*[iter(batches)] * 2, strict=False)], ids=["all", "two"])
def test_who_asks_for_a_batch_too_early_is_told_so(ahead: Callable[[Any], Any], tmp_path: Path) -> None:
    def takes() -> None:
        with Plain(tmp_path).run as run:
            for _ in ahead(run.batches()):
                pass

    with pytest.raises(StepError, match=r"without a backward pass for share 2 of step 0(.*\n)*.* no prefetcher"):
        takes()


def test_after_the_loop_optimizers_and_schedulers_are_as_they_were(tmp_path: Path) -> None:
    loop = Plain(tmp_path)
    before = type(loop.scheduler), loop.optimizer.step
    loop.train(good)

    assert (type(loop.scheduler), loop.optimizer.step) == before
    assert "zero_grad" not in vars(loop.optimizer)


def test_an_optimizer_steps_in_the_loop_only(tmp_path: Path) -> None:
    def early(loop: Plain) -> None:
        with loop.run as run:
            run.batches()
            loop.optimizer.step()

    with pytest.raises(StepError, match="outside the loop"):
        early(Plain(tmp_path))


@pytest.mark.parametrize(("reduction", "warned"), [("sum", True), ("mean", False), ("none", False)])
def test_a_sum_is_warned_of_once(
    reduction: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.Tensor.backward

    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        loss: Any = F.cross_entropy(loop.model(x), y, reduction=reduction)
        (loss if reduction != "none" else loss.mean()).backward()
        loop.optimizer.step()

    Plain(tmp_path).train(body)

    assert capsys.readouterr().err.count("takes it for a mean") == warned
    assert torch.Tensor.backward is before


class Lookahead(torch.optim.Optimizer):
    """Of those that torch's __init__ never sees: every fifth step it goes half way back."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        self.count = 0
        self.slow = [weight.detach().clone() for weight in self._weights()]

    def _weights(self) -> list[torch.Tensor]:
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)
        self.count += 1
        if self.count % 5 == 0:
            with torch.no_grad():
                for weight, slow in zip(self._weights(), self.slow, strict=True):
                    weight.copy_(slow.lerp_(weight, 0.5))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def test_what_wraps_the_optimizer_and_writes_to_weights_is_refused(tmp_path: Path) -> None:
    """It counts bodies."""
    loop = Plain(tmp_path)
    wrapped = Lookahead(loop.optimizer)

    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        wrapped.zero_grad()
        loop.loss(x, y).backward()
        wrapped.step()

    with pytest.raises(StepError, match="the body of the inner loop wrote to weights in step 1"):
        loop.train(body)
    with pytest.raises(ConfigError, match="a Lookahead that has no hooks of torch's"):
        Plain(tmp_path / "handed", optimizer=wrapped)


def test_every_so_many_steps_a_body_evaluates(tmp_path: Path) -> None:
    """BatchNorm's averages moved behind the backward pass, it was said, also with model.eval() around it."""

    def evaluates(folder: str, mode: bool | None) -> tuple[list[float], str]:
        loop, found = Plain(tmp_path / folder), list[float]()

        def score(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            return {"loss": F.cross_entropy(loop.model(x), y, reduction="sum")}

        def evaluate(*_: Any) -> None:
            found.append(loop.run.evaluate(loop.data, score)["loss"])

        def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
            good(loop, x, y)
            if loop.run.stepped and mode is not None:
                loop.model.train(mode)
                evaluate()
                loop.model.train()

        if mode is None:
            loop.run.on_apply(evaluate)
        loop.train(body)
        return found, loop.state

    in_train_mode = evaluates("train", True)
    assert len(in_train_mode[0]) == STEPS
    assert evaluates("eval", False) == in_train_mode
    assert evaluates("apply", None)[1] == in_train_mode[1]


def test_an_evaluation_before_the_update_says_what_guards_it(tmp_path: Path) -> None:
    """`if run.step_index % 100 == 0:` alone holds in each body of a step."""

    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        good(loop, x, y)
        loop.run.evaluate(loop.data, lambda x, y: {"n": len(y)})

    with pytest.raises(StepError, match=r"inside step 0(.|\n)*next   call it in the body under `if run\.stepped:`"):
        Plain(tmp_path).train(body)


@pytest.mark.parametrize("evaluates", [True, False])
def test_what_is_moved_before_or_behind_an_evaluation_in_the_body_is_refused(tmp_path: Path, evaluates: bool) -> None:
    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        good(loop, x, y)
        if loop.run.stepped:
            if evaluates:
                loop.run.evaluate(loop.data, lambda x, y: {"n": len(y)})
            loop.model(x)
            if not evaluates:
                loop.run.evaluate(loop.data, lambda x, y: {"n": len(y)})

    with pytest.raises(StepError, match=r"moved buffers behind its backward pass, in step 0: 1\.num_batches_tracked"):
        Plain(tmp_path).train(body)


def test_an_evaluation_at_the_beginning_of_an_epoch_says_where_it_may_be(tmp_path: Path) -> None:
    loop, data = Plain(tmp_path), TensorDataset(torch.randn(4, 4), torch.arange(4) % 2)

    def train() -> None:
        with loop.run as run:
            for _ in run.epochs():
                run.evaluate(data, lambda x, y: {"n": torch.tensor(len(x))})

    with pytest.raises(
        StepError, match=r"run\.evaluate was called at the beginning of epoch 0, before its batches"
    ) as no:
        train()
    assert "behind the last batch of the epoch before" in str(no.value)

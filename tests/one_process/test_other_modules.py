"""A module that the run was not handed is refused by name where it changes, at the first step, at one worker, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elastic.errors import StepError
from tests.one_process.test_plain_misuse import Plain


def in_place(teacher: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for mine, other in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.lerp_(other, 0.1)


def through_data(teacher: nn.Module, model: nn.Module) -> None:
    for mine, other in zip(teacher.parameters(), model.parameters(), strict=True):
        mine.data.mul_(0.9).add_(other.data, alpha=0.1)


def step(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
    loop.optimizer.zero_grad()
    loop.loss(x, y).backward()
    loop.optimizer.step()
    loop.scheduler.step()


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("average", [in_place, through_data])
def test_a_teacher_of_the_script_s_own_is_refused_where_it_changes(
    tmp_path: Path, average: Callable[[nn.Module, nn.Module], None], mode: str
) -> None:
    """In silence it followed each worker's own bodies, and began anew on a resume."""
    loop = Plain(tmp_path, mode=mode)
    teacher = copy.deepcopy(loop.model)

    def train() -> None:
        with loop.run as run:
            for x, y in run.batches():
                step(loop, x, y)
                average(teacher, loop.model)

    with pytest.raises(StepError, match="teacher is a module that the run was not handed, and it has changed") as no:
        train()
    assert loop.run.step_index <= 1
    assert "Run(extra={'teacher': teacher})" in str(no.value)


def test_a_lazy_module_of_the_script_s_is_let_pass(tmp_path: Path) -> None:
    """ValueError: an uninitialized parameter was looked at."""
    loop, probe = Plain(tmp_path), nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    with loop.run as run:
        for x, y in run.batches():
            step(loop, x, y)
    assert run.finished
    assert all(is_lazy(one) for one in probe.parameters())


def test_one_that_an_optimizer_of_the_script_s_own_trains_is_told_of_that(tmp_path: Path) -> None:
    loop, critic = Plain(tmp_path), nn.Linear(2, 2)
    critics = torch.optim.SGD(critic.parameters(), lr=0.1)

    def train() -> None:
        with loop.run as run:
            for x, _ in run.batches():
                critic(loop.model(x)).pow(2).mean().backward()
                critics.step()
                loop.optimizer.step()

    with pytest.raises(StepError, match="a SGD that the run does not know") as no:
        train()
    assert "hand both over" in str(no.value)


KEPT = nn.Linear(4, 2)


def changes_what_is_kept() -> None:
    with torch.no_grad():
        KEPT.weight.add_(1)


def test_a_global_of_a_function_that_the_body_calls_is_found(tmp_path: Path) -> None:
    loop = Plain(tmp_path)

    def train() -> None:
        with loop.run as run:
            for x, y in run.batches():
                changes_what_is_kept()
                step(loop, x, y)

    with pytest.raises(StepError, match="KEPT is a module that the run was not handed, and it has changed by step 0"):
        train()


def test_an_average_of_epochs_is_refused_when_it_has_changed(tmp_path: Path) -> None:
    """Held by an object of the script's own, it is found too."""
    loop = Plain(tmp_path, epochs=2)
    held = SimpleNamespace(swa=copy.deepcopy(loop.model))

    def train() -> None:
        with loop.run as run:
            for _ in run.epochs():
                for x, y in run.batches():
                    step(loop, x, y)
                in_place(held.swa, loop.model)

    with pytest.raises(StepError, match=r"held\.swa is a module that the run was not handed.* by step 4"):
        train()


class Queue(nn.Module):
    """Writes to a frozen copy of its layer in its forward pass, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        in_place(self.key, self.query)
        return self.query(x) * self.key(x)


def test_what_a_module_keeps_for_speed_alone_is_let_pass(tmp_path: Path) -> None:
    """A buffer that is in no state_dict, such as tables that grow with the longest input; and what a
    module does when it is looked at is its own affair."""
    loop, teacher = Plain(tmp_path), Rude().eval()
    with loop.run as run:
        for x, y in run.batches():
            teacher.register_buffer("table", torch.rand(3), persistent=False)
            step(loop, x, y)
    assert run.finished


class Rude(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:  # type: ignore[override]
        return super().named_parameters(prefix, recurse)

    @property
    def step(self) -> int:
        raise RuntimeError


def test_what_a_body_writes_to_the_run_s_own_weights_is_said_first(tmp_path: Path) -> None:
    """Other gradients come of it, which is not said: the weights are not as they were."""
    loop = Plain(tmp_path)
    loop.model.append(Queue())
    loop.model.insert(3, nn.Linear(2, 4))
    with pytest.raises(StepError, match=r"the body of the inner loop wrote to weights in step 0: .*key\.weight"):
        loop.train(step)


def test_modules_that_stay_and_those_that_are_the_run_s_are_let_pass(tmp_path: Path) -> None:
    """Under another name, and as memory of another parameter."""
    teacher = nn.Linear(4, 2)
    average = copy.deepcopy(teacher)
    loop = Plain(tmp_path, extra={"average": average})
    features, first = loop.model[:2], nn.Linear(4, 4)
    first.weight.data = next(loop.model.parameters()).data
    holder: Any = SimpleNamespace(model=loop.model)
    with loop.run as run:
        for x, y in run.batches():
            loop.optimizer.zero_grad()
            (loop.loss(x, y) + (teacher(x) + average(x)).mean() * 0).backward()
            loop.optimizer.step()
            if run.stepped:
                in_place(average, teacher)
            probe = nn.Linear(4, 2)
            nn.init.zeros_(probe.weight)
    assert run.finished
    assert features is not holder.model


class Shadow:
    """An average that is no module, as scripts write it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * weight.detach()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = dict(state)


class Adapter:
    """Carries what it does not hold."""

    def __init__(self, shadow: Shadow) -> None:
        self.state_dict, self.load_state_dict = shadow.state_dict, shadow.load_state_dict


class OfAll:
    """Likewise, of all that the model's state_dict names, in place."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = copy.deepcopy(model.state_dict())

    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            self.shadow[name].copy_(value)


def averaged(loop: Plain, ema: Any) -> None:
    with loop.run as run:
        for x, y in run.batches():
            step(loop, x, y)
            if run.stepped:
                ema.update(loop.model)


@pytest.mark.parametrize("kind", [Shadow, OfAll])
def test_an_average_that_is_no_module_is_refused_too(tmp_path: Path, kind: Callable[[nn.Module], Any]) -> None:
    loop = Plain(tmp_path)
    with pytest.raises(StepError, match=r"ema\.shadow is a copy or an average of weights that the run was not handed"):
        averaged(loop, kind(loop.model))


def test_a_list_of_gradients_that_is_made_anew_is_no_average(tmp_path: Path) -> None:
    """Twice in a body: the second one lies where the one of the body before has been."""
    loop = Plain(tmp_path, epochs=8)

    def train() -> None:
        with loop.run as run:
            for x, y in run.batches():
                step(loop, x, y)
                for _ in range(2):
                    grads = [weight.detach().clone() for weight in loop.model.parameters()]
            assert grads

    train()
    assert loop.run.finished


@pytest.mark.parametrize("how", [lambda ema: ema, Adapter], ids=["itself", "by another object"])
def test_an_average_that_was_handed_over_is_let_pass(tmp_path: Path, how: Callable[[Shadow], Any]) -> None:
    ema = Shadow(Plain(tmp_path / "other").model)
    loop = Plain(tmp_path / "run", extra={"mine": how(ema)})
    averaged(loop, ema)
    assert loop.run.finished

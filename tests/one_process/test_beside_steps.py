"""What a script keeps beside a run is told of in a loop over steps, once: it is lost with a worker, and no more."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic.errors import StepError
from tests.one_process.test_other_modules import OfAll, Shadow, in_place
from tests.one_process.test_plain_misuse import Plain

Said = pytest.CaptureFixture[str]


def take(loop: Plain, step: Any) -> None:
    for x, y in step:
        step.backward(loop.loss(x, y) * len(y), count=len(y))


def averaged(loop: Plain, teacher: nn.Module) -> None:
    student = [teacher]  # another name of it
    with loop.run as run:
        for step in run:
            take(loop, step)
            in_place(teacher, loop.model)
    assert run.finished
    assert student


def test_an_average_that_the_run_was_not_handed_is_told_of(tmp_path: Path, capsys: Said) -> None:
    """On a worker that joined, and after a resume, it began anew in silence."""
    loop = Plain(tmp_path, epochs=3)
    averaged(loop, copy.deepcopy(loop.model))
    said = capsys.readouterr().err
    assert said.count("teacher is a module that the run was not handed, and it has changed by step 1: 0.weight") == 1
    assert said.count("was not handed") == 1
    assert "no save holds it, and a worker that joins begins it anew" in said
    assert "is handed over: Run(extra={'teacher': teacher})" in said


@pytest.mark.parametrize("how", [lambda teacher, x: teacher(x), lambda teacher, x: teacher[0](x)])
def test_one_that_changes_and_is_asked_in_a_body_is_refused(
    tmp_path: Path, capsys: Said, how: Callable[[Any, torch.Tensor], torch.Tensor]
) -> None:
    """It is a teacher, or a critic: a worker that joined had another one, and a resume."""
    loop = Plain(tmp_path)
    teacher = copy.deepcopy(loop.model)

    def train() -> None:
        with loop.run as run:
            for step in run:
                for x, y in step:
                    distance = (how(teacher, x).detach().sum() - loop.model(x).sum()).square()
                    step.backward(loop.loss(x, y) * len(y) + distance * 0.01, count=len(y))
                in_place(teacher[0], loop.model[0])

    teacher.eval()
    with pytest.raises(
        StepError, match="teacher, a module that the run was not handed, changes, and is asked in"
    ) as no:
        train()
    assert "Run(extra={'teacher': teacher})" in str(no.value)
    assert loop.run.step_index == 1
    assert capsys.readouterr().err.count("was not handed, and it has changed by step 1") == 1
    assert copy.deepcopy(teacher)(torch.zeros(1, 4)).shape == (1, 2)
    assert pickle.dumps(teacher)


class Blind(nn.Module):
    """It lets nobody look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError


def test_a_new_one_of_a_known_name_beside_one_that_lets_nobody_look_is_refused(tmp_path: Path, capsys: Said) -> None:
    loop, another_one = Plain(tmp_path, epochs=40), Blind()
    teacher = copy.deepcopy(loop.model).eval()

    def train() -> None:
        nonlocal teacher
        with loop.run as run:
            for step in run:
                if step.index == 8:
                    teacher = copy.deepcopy(loop.model).eval()
                for x, y in step:
                    asked = teacher(x).detach().sum() * 0 if step.index > 8 else 0
                    step.backward(loop.loss(x, y) * len(y) + asked, count=len(y))
                in_place(teacher[0], loop.model[0])

    with pytest.raises(StepError, match="teacher, a module that the run was not handed, changes, and is asked"):
        train()
    assert another_one.inner.weight.shape == (1, 1)
    assert capsys.readouterr().err.count("teacher is a module that the run was not handed") == 1


def test_parts_that_stay_other_threads_and_compiled_copies_are_let_pass(tmp_path: Path, capsys: Said) -> None:
    loop = Plain(tmp_path, epochs=3)
    system = nn.ModuleDict({"loss": nn.MSELoss(), "seen": nn.BatchNorm1d(4), "model": loop.model})
    shown = copy.deepcopy(loop.model).eval()
    compiled = torch.compile(shown, backend="eager")
    answers = []
    with loop.run as run:
        for step in run:
            for x, _ in step:
                loss = system["loss"](system["model"](x), torch.zeros(len(x), 2))
                if step.index > 4:
                    thread = threading.Thread(target=lambda x=x: answers.append(shown(x)))
                    thread.start()
                    thread.join(60)
                step.backward(loss * len(x), count=len(x))
            system["seen"](torch.randn(5, 4))
            shown.load_state_dict(loop.model.state_dict())
            if step.index > 2:
                compiled(torch.zeros(step.index, 4))
    assert run.finished
    assert len(answers) >= 3 * (run.step_index - 5)  # shares that are cross-checked come once more
    said = capsys.readouterr().err
    assert "system is a module that the run was not handed" in said
    assert "shown is a module that the run was not handed" in said


@pytest.mark.parametrize("where", ["between steps", "in bodies, as it was"])
def test_one_that_is_asked_where_nothing_comes_of_it_is_let_pass(tmp_path: Path, where: str) -> None:
    """A copy for evaluation; and a teacher that is cast in the first body, and stays."""
    loop = Plain(tmp_path, epochs=2)
    other = copy.deepcopy(loop.model).eval()
    with loop.run as run:
        for step in run:
            for x, y in step:
                if where != "between steps":
                    other.double()
                    other(x.double())
                step.backward(loop.loss(x, y) * len(y), count=len(y))
            if where == "between steps":
                other.load_state_dict(loop.model.state_dict())
                other(torch.zeros(2, 4))
    assert run.finished
    assert other(torch.zeros(2, 4, dtype=next(other.parameters()).dtype)).shape == (2, 2)


def test_one_that_was_handed_over_is_let_pass(tmp_path: Path, capsys: Said) -> None:
    teacher = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    averaged(Plain(tmp_path, extra={"teacher": teacher}), teacher)
    assert "not handed" not in capsys.readouterr().err


def test_of_several_in_a_list_the_name_is_what_python_takes(tmp_path: Path, capsys: Said) -> None:
    loop = Plain(tmp_path)
    teachers = [nn.Linear(1, 1), copy.deepcopy(loop.model)]
    with loop.run as run:
        for step in run:
            take(loop, step)
            in_place(teachers[1], loop.model)
    assert "teachers[1] is a module that" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [Shadow, OfAll])
def test_an_average_that_is_no_module_is_told_of_too(tmp_path: Path, capsys: Said, kind: Any) -> None:
    loop = Plain(tmp_path)
    ema = kind(loop.model)
    with loop.run as run:
        for step in run:
            take(loop, step)
            ema.update(loop.model)
    assert run.finished
    said = capsys.readouterr().err
    assert said.count("ema.shadow is a copy or an average of weights that the run was not handed") == 1
    assert "in an object with state_dict and load_state_dict, Run(extra={'shadow': ...})" in said


def test_the_best_weights_are_told_of_once(tmp_path: Path, capsys: Said) -> None:
    loop, best = Plain(tmp_path, epochs=30), None
    with loop.run as run:
        for step in run:
            take(loop, step)
            if step.last_of_epoch and step.epoch in (4, 8):
                best = copy.deepcopy(loop.model.state_dict())
    assert best is not None
    assert capsys.readouterr().err.count("best keeps a copy of the run's weights since before step 21") == 1


class Holder:
    """Steps as a trainer does, counts, and may hold an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.seen = optimizer, 0

    def step(self) -> None:
        raise NotImplementedError

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


@pytest.mark.parametrize("kept", ["in a variable", "by an object"])
def test_an_optimizer_that_is_made_anew_in_the_loop_is_told_of(tmp_path: Path, capsys: Said, kept: str) -> None:
    """The run steps the one that it has, and this one's rates had no effect, in silence."""
    loop = Plain(tmp_path, epochs=20)
    optimizer, holder = loop.optimizer, Holder(loop.optimizer)
    with loop.run as run:
        for step in run:
            take(loop, step)
            if step.index == 9:
                new = torch.optim.LBFGS(loop.model.parameters(), lr=1e-3)
                if kept == "in a variable":
                    optimizer = new  # type: ignore[assignment]
                else:
                    holder.optimizer = new
    assert optimizer
    name = "optimizer" if kept == "in a variable" else "holder.optimizer"
    assert capsys.readouterr().err.count(f"{name} is another optimizer of 0.weight than the run has, a new LBFGS") == 1


class OfSeveral(torch.optim.Optimizer):
    """An optimizer by its type alone."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers


class Around(torch.optim.Optimizer):
    """As Accelerate's, a wrapper of the run's own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.inner = [optimizer]
        self.param_groups = optimizer.param_groups


def test_what_is_no_other_optimizer_is_let_pass(tmp_path: Path, capsys: Said) -> None:
    """From before, of other parameters, around the run's own, without groups, a proxy, a trainer that counts."""
    loop, other = Plain(tmp_path), nn.Linear(2, 2)
    before, several = torch.optim.Adam(loop.model.parameters()), OfSeveral(loop.optimizer)
    trainer, proxy, dead = Holder(loop.optimizer), weakref.proxy(loop.optimizer), weakref.proxy(nn.Linear(1, 1))
    with loop.run as run:
        for step in run:
            take(loop, step)
            trainer.seen += 1
            of_another = torch.optim.SGD(other.parameters(), lr=0.1)
            around = Around(loop.optimizer)
    assert run.finished
    assert all(one is not None for one in (before, several, trainer, proxy, dead, of_another, around))
    assert "another optimizer" not in capsys.readouterr().err

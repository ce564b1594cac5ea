"""What a script keeps beside a run is looked for in a loop over steps, too; what was handed over is let pass."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic.errors import StepError
from tests.one_process.test_other_modules import Shadow, in_place
from tests.one_process.test_plain_misuse import Plain


def take(loop: Plain, step: Any) -> None:
    for x, y in step:
        step.backward(loop.loss(x, y) * len(y), count=len(y))


def averaged(loop: Plain, teacher: nn.Module) -> None:
    with loop.run as run:
        for step in run:
            take(loop, step)
            in_place(teacher, loop.model)


def test_an_average_that_the_run_was_not_handed_is_refused_where_it_changes(tmp_path: Path) -> None:
    """On a worker that joined, and after a resume, it began anew in silence."""
    loop = Plain(tmp_path)
    with pytest.raises(StepError, match="teacher is a module that the run was not handed, and it has changed by") as no:
        averaged(loop, copy.deepcopy(loop.model))
    assert loop.run.step_index == 1
    assert "hand it over: Run(extra={'teacher': teacher}); change it behind the inner loop" in str(no.value)
    assert "share" not in str(no.value)


def test_one_that_was_handed_over_is_let_pass(tmp_path: Path) -> None:
    teacher = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    loop = Plain(tmp_path, extra={"teacher": teacher})
    averaged(loop, teacher)
    assert loop.run.finished


def test_an_average_that_is_no_module_is_refused_too(tmp_path: Path) -> None:
    loop = Plain(tmp_path)
    ema = Shadow(loop.model)

    def train() -> None:
        with loop.run as run:
            for step in run:
                take(loop, step)
                ema.update(loop.model)

    with pytest.raises(StepError, match=r"ema\.shadow is an average of weights that the run was not handed") as no:
        train()
    assert "share" not in str(no.value)


def test_the_best_weights_are_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop, best = Plain(tmp_path, epochs=3), None
    with loop.run as run:
        for step in run:
            take(loop, step)
            if step.index == 3:
                best = copy.deepcopy(loop.model.state_dict())
    assert best is not None
    said = capsys.readouterr().err
    assert said.count("best keeps a copy of the run's weights") == 1


def test_an_optimizer_that_is_made_anew_in_the_loop_is_refused(tmp_path: Path) -> None:
    """The run steps the one that it has, and this one's rates had no effect, in silence."""
    loop = Plain(tmp_path, epochs=10)

    def train() -> None:
        optimizer = loop.optimizer
        with loop.run as run:
            for step in run:
                take(loop, step)
                if step.index == 9:
                    optimizer = torch.optim.SGD(loop.model.parameters(), lr=1e-3)
        assert optimizer

    with pytest.raises(StepError, match=r"optimizer is a SGD of 0\.weight that the run does not know, made in") as no:
        train()
    assert loop.run.step_index <= 16
    assert "add_param_group()" in str(no.value)


class Wrapper:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class WrapsAsOne(Wrapper, torch.optim.Optimizer):
    """As Accelerate's: an optimizer by its type, and none of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.param_groups = optimizer.param_groups


def test_optimizers_from_before_of_others_and_around_the_run_s_are_let_pass(tmp_path: Path) -> None:
    loop, other = Plain(tmp_path), nn.Linear(2, 2)
    before = torch.optim.Adam(loop.model.parameters())
    with loop.run as run:
        for step in run:
            take(loop, step)
            of_another = torch.optim.SGD(other.parameters(), lr=0.1)
            around = WrapsAsOne(loop.optimizer)
    assert loop.run.finished
    assert {type(one) for one in (before, of_another, around)} == {torch.optim.Adam, torch.optim.SGD, WrapsAsOne}

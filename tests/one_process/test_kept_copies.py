"""Copies of the weights that a script takes while it trains: told of once; refused where a body computes with one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from elastic.errors import StepError
from tests.one_process.test_other_modules import step
from tests.one_process.test_plain_misuse import Plain

Take = Callable[[nn.Module], Any]


def as_a_dict(model: nn.Module) -> Any:
    return copy.deepcopy(model.state_dict())


def of_its_weights(model: nn.Module) -> Any:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


@pytest.mark.parametrize("take", [as_a_dict, of_its_weights, copy.deepcopy])
def test_the_best_epochs_weights_are_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], take: Take
) -> None:
    """A resume would have none of them, or those of a worse epoch: nobody would notice."""
    loop, best = Plain(tmp_path, epochs=4), None
    with loop.run as run:
        for epoch in run.epochs():
            for x, y in run.batches():
                step(loop, x, y)
            if epoch in (0, 2):
                best = take(loop.model)
    assert run.finished
    assert best is not None
    said = capsys.readouterr().err
    assert said.count("best keeps a copy of the run's weights since before step 5, which no save holds") == 1
    assert said.count("keeps a copy") == 1


def test_one_that_an_object_of_the_script_s_keeps_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop, kept = Plain(tmp_path, epochs=2), SimpleNamespace(best=None)
    with loop.run as run:
        for _ in run.epochs():
            for x, y in run.batches():
                step(loop, x, y)
            kept.best = as_a_dict(loop.model)
    assert "kept.best keeps a copy of the run's weights" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_teacher_that_is_replaced_is_refused_where_a_body_asks_it(tmp_path: Path, mode: str) -> None:
    """In silence a resume asked the model of the script's beginning."""
    loop = Plain(tmp_path, mode=mode, epochs=3)
    teacher = copy.deepcopy(loop.model).eval()

    def train() -> None:
        nonlocal teacher
        with loop.run as run:
            for _ in run.epochs():
                for x, y in run.batches():
                    loop.optimizer.zero_grad()
                    (loop.loss(x, y) + (loop.model(x) - teacher(x)).pow(2).mean()).backward()
                    loop.optimizer.step()
                    loop.scheduler.step()
                teacher = copy.deepcopy(loop.model).eval()

    with pytest.raises(StepError, match="teacher is a copy of the run's weights that the run was not handed"):
        train()
    assert loop.run.step_index == 5  # of the second epoch's four, the second


def test_one_that_is_asked_between_steps_is_told_of_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Plain(tmp_path, epochs=3)
    best = loop.model
    with loop.run as run:
        for _ in run.epochs():
            for x, y in run.batches():
                step(loop, x, y)
                if run.stepped:
                    best.eval()(x)
                    loop.model.train()
            best = copy.deepcopy(loop.model)
    assert run.finished
    assert "best keeps a copy" in capsys.readouterr().err


def test_what_is_carried_what_is_used_up_and_what_was_there_before_are_let_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best: Any = copy.deepcopy(Plain(tmp_path / "another").model)
    best.accuracy = 0.0
    loop = Plain(tmp_path / "run", epochs=4, extra={"best": best})
    first = copy.deepcopy(loop.model).eval()
    with loop.run as run:
        for epoch in run.epochs():
            for x, y in run.batches():
                apart = copy.deepcopy(loop.model)
                loop.optimizer.zero_grad()
                (loop.loss(x, y) + (apart.eval()(x) - first(x)).mean() * 0).backward()
                loop.optimizer.step()
                loop.scheduler.step()
                if run.stepped:
                    before = as_a_dict(loop.model)
            here = loop.model.state_dict()
            if epoch in (1, 2):
                best.load_state_dict(here)
                best.accuracy = float(epoch)
    assert run.finished
    assert before.keys() == here.keys()
    assert "keeps a copy" not in capsys.readouterr().err

"""Copies of the weights that a script takes while it trains: told of once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

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
def test_a_teacher_that_is_replaced_is_told_of_and_can_be_written_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """In silence a resume asked the model of the script's beginning."""
    loop = Plain(tmp_path / "run", mode=mode, epochs=3)
    teacher = copy.deepcopy(loop.model).eval()
    with loop.run as run:
        for _ in run.epochs():
            for x, y in run.batches():
                loop.optimizer.zero_grad()
                (loop.loss(x, y) + (loop.model(x) - teacher(x)).pow(2).mean()).backward()
                loop.optimizer.step()
                loop.scheduler.step()
            torch.save(teacher, tmp_path / "teacher.pt")
            teacher = copy.deepcopy(loop.model).eval()
    assert run.finished
    assert capsys.readouterr().err.count("teacher keeps a copy of the run's weights since before step 5") == 1


def test_what_is_of_the_weights_shapes_and_no_copy_is_let_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reference from a file, a statistic, a mask, and a cache that another thread fills."""
    loop, cache, stop = Plain(tmp_path, epochs=3), {"0": torch.zeros(1)}, threading.Event()
    reference = statistic = mask = half = None

    def fill() -> None:
        while not stop.is_set():
            cache[str(len(cache))] = torch.zeros(1)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        with loop.run as run:
            for epoch in run.epochs():
                if epoch == 1:
                    reference = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
                    statistic = {name: torch.zeros_like(one) for name, one in loop.model.named_parameters()}
                    mask = {name: one > 0 for name, one in loop.model.named_parameters()}
                    half = copy.deepcopy(loop.model).half()
                for x, y in run.batches():
                    step(loop, x, y)
    finally:
        stop.set()
        filling.join()
    assert None not in (reference, statistic, mask, half)
    assert "keeps a copy" not in capsys.readouterr().err


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

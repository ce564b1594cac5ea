"""A loop's body that depends on what an earlier one has left is refused at its first step, at one worker, too."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elastic.errors import StepError
from tests.one_process.test_plain_misuse import SHARES, STEPS, Plain, good

AGAIN = r"share \d of step 0 was passed twice, by this worker, and gave other gradients the second time: .*0\.weight"


def checked(url: Path, **options: Any) -> Plain:
    return Plain(url, **{"cross_check": 0.0, **options})


class Hidden(nn.Module):
    """Adds to its input what `keep` has kept of the last one: in a list, say, or in an object of its own."""

    def __init__(self, kept: Any, keep: Callable[[Any, torch.Tensor], None], last: Callable[[Any], Any]) -> None:
        super().__init__()
        self.kept = kept
        self._keep, self._last = keep, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x.detach().mean(dim=0)
        x = x + torch.as_tensor(self._last(self.kept))
        self._keep(self, before)
        return x


class Box:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


HIDDEN = {
    "a list": ([torch.zeros(4)], lambda module, x: module.kept.__setitem__(0, x), lambda kept: kept[0]),
    "a deque": (deque([torch.zeros(4)], maxlen=1), lambda module, x: module.kept.append(x), lambda kept: kept[-1]),
    "an array": (np.zeros(4, np.float32), lambda module, x: setattr(module, "kept", x.numpy()), lambda kept: kept),
    "a loader": (iter(torch.randn(400, 1)), lambda module, x: None, next),
    "an object": (Box(torch.zeros(4)), lambda module, x: setattr(module.kept, "value", x), lambda kept: kept.value),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_hidden_state_of_any_kind_is_refused(tmp_path: Path, kind: str) -> None:
    """Which share came before depends on the world size; no state_dict and no plain attribute has it."""
    loop = checked(tmp_path)
    loop.model.insert(0, Hidden(*HIDDEN[kind]))
    before = loop.state
    with pytest.raises(StepError, match="was passed twice, by this worker, and gave other gradients the second time"):
        loop.train(good)
    assert loop.state == before


def test_a_count_of_bodies_that_weighs_the_loss_is_refused(tmp_path: Path) -> None:
    """Its name is among those of the script's variables that have changed."""
    loop = checked(tmp_path)
    before = loop.state

    def train(count: int) -> None:
        with loop.run as run:
            for x, y in run.batches():
                count += 1
                loop.optimizer.zero_grad()
                (loop.loss(x, y) * min(1.0, count / 10)).backward()
                loop.optimizer.step()

    with pytest.raises(StepError, match=AGAIN) as refused:
        train(0)
    assert "of the script's variables it changed count\n" in str(refused.value)
    assert "run.step_index" in str(refused.value)
    assert loop.state == before


def test_counts_that_reach_no_loss_are_nobodys_state(tmp_path: Path) -> None:
    """What is logged, and draws of every generator, those of the script's variables included."""
    loop, plain = checked(tmp_path / "run"), checked(tmp_path / "plain")
    count, losses, total = 0, [], torch.zeros(())
    draw, rng, own = torch.Generator().manual_seed(3), np.random.default_rng(3), random.Random(3)

    def noise() -> float:
        drawn = [rng.random(), own.random(), float(torch.rand((), generator=draw)), random.random(), np.random.rand()]
        return 0.0 * sum(drawn) + 1.0

    with loop.run as run:
        for x, y in run.batches():
            loop.optimizer.zero_grad()
            loss = loop.loss(x, y) * noise()
            loss.backward()
            loop.optimizer.step()
            loop.scheduler.step()
            losses.append(loss.item())
            total += loss.detach()
            count += 1
    plain.train(good)
    assert loop.state == plain.state
    assert count == len(losses) > SHARES * STEPS
    assert losses[0] == losses[SHARES], "the step's last share comes first, for nothing"


def test_a_generator_that_is_a_variable_draws_by_place(tmp_path: Path) -> None:
    """It went on from one share to the next, of which a worker has as many as the world size says."""

    def train(url: Path, until: int | None = None) -> Plain:
        loop, rng = checked(url), np.random.default_rng(0)
        with loop.run as run:
            for x, y in run.batches():
                if run.step_index == until:
                    raise KeyboardInterrupt
                loop.optimizer.zero_grad()
                loop.loss(x * float(rng.beta(0.4, 0.4)), y).backward()
                loop.optimizer.step()
                loop.scheduler.step()
        return loop

    whole = train(tmp_path / "whole").state
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", until=2)
    assert train(tmp_path / "cut").state == whole


def test_in_fast_mode_a_share_is_passed_alone_twice(tmp_path: Path) -> None:
    """In the first step, and in the one before the save, ahead of the batch of all shares that a step has."""
    bodies = 0

    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal bodies
        bodies += 1
        good(loop, x, y)

    checked(tmp_path, mode="fast").train(body)
    assert bodies == STEPS + 2 * 2


def test_in_fast_mode_a_hidden_state_is_refused(tmp_path: Path) -> None:
    loop = checked(tmp_path, mode="fast")
    loop.model.insert(0, Hidden(*HIDDEN["a list"]))
    with pytest.raises(StepError, match="was passed twice, by this worker, and gave other gradients the second time"):
        loop.train(good)


def test_gradients_that_a_script_keeps_to_look_at_are_no_average(tmp_path: Path) -> None:
    loop, last = Plain(tmp_path), dict[str, torch.Tensor]()

    def body(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        loop.optimizer.zero_grad()
        loop.loss(x, y).backward()
        if loop.run.updating:
            last.update((name, one.grad.clone()) for name, one in loop.model.named_parameters() if one.grad is not None)
        loop.optimizer.step()

    loop.train(body)
    assert last
    assert loop.run.finished

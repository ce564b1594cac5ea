"""What only a step can show is refused there: with advice, and with the model as it was before that step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

Body = Callable[[elastic.Step, torch.Tensor, torch.Tensor], None]


class Misused:
    """A small run; `state` is everything that a refused step must leave alone."""

    def __init__(self, url: Path | str, model: nn.Module | None = None, **options: Any) -> None:
        elastic.seed(1)
        self.model = model or nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        data = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
        given: dict[str, Any] = {"dataset": data, "batch_size": 12, "virtual_workers": 3, "epochs": 1, "save_every": 1}
        self.run = elastic.Run(url, model=self.model, optimizer=self.optimizer, **grouped(given | options))

    def train(self, body: Body | None = None) -> None:
        with self.run as run:
            for step in run:
                for x, y in step:
                    (body or self.good)(step, x, y)

    def good(self, step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        step.backward(self.loss(x, y), count=len(y))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y, reduction="sum")

    @property
    def state(self) -> str:
        return elastic_checkpoint.digest({"model": self.model, "optimizer": self.optimizer})


@pytest.fixture
def misused(tmp_path: Path) -> Iterator[Misused]:
    """Afterwards the run goes on: whatever was refused has cost nothing that was applied."""
    made = Misused(tmp_path / "run")
    yield made
    undisturbed = Misused(tmp_path / "undisturbed")
    undisturbed.train()
    resumed = Misused(tmp_path / "run")
    resumed.train()
    assert resumed.run.finished
    assert resumed.state == undisturbed.state


def refused(misused: Misused, body: Body, match: str, error: type[Exception] = StepError) -> None:
    """Takes one good step, then the bad one: it is refused with reasons, and changes nothing: what its
    share did to BatchNorm's averages is undone."""
    before = ""

    def second(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal before
        if step.index == 0:
            misused.good(step, x, y)
            return
        before = before or misused.state
        body(step, x, y)

    with pytest.raises(error, match=match) as raised:
        misused.train(second)
    if error is StepError:
        assert "state  " in str(raised.value)
        assert "next   " in str(raised.value)
    assert misused.run.step_index == 1
    assert misused.state == before


def test_a_loss_that_is_no_number_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        step.backward(F.cross_entropy(misused.model(x), y, reduction="none"), count=len(y))

    refused(misused, body, r'a tensor of shape \(4,\), and a loss is one number(.|\n)*reduction="sum"')


def test_a_loss_that_is_no_tensor_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        step.backward(misused.loss(x, y).item(), count=len(y))  # type: ignore[arg-type]  # the misuse

    refused(misused, body, r"a float, and a loss is one number")


def test_a_loss_without_a_gradient_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            loss = misused.loss(x, y)
        step.backward(loss, count=len(y))

    refused(misused, body, r"no parameter takes part in(.|\n)*torch.no_grad")


@pytest.mark.parametrize("count", [-1, float("nan"), True, None])
def test_a_count_that_is_no_count_is_refused(misused: Misused, count: Any) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        step.backward(misused.loss(x, y), count=count)

    refused(misused, body, r"count=.*expected how many examples")


def test_a_step_that_counts_nothing_anywhere_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        step.backward(misused.loss(x, y) * 0, count=0)

    refused(misused, body, r"counted nothing on any worker, so its gradient has no divisor")


def test_a_second_backward_for_a_share_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        misused.good(step, x, y)
        misused.good(step, x, y)

    refused(misused, body, r"a second time for share 0 \(step 1\)(.|\n)*add several losses up first")


def test_a_share_without_a_backward_is_refused(misused: Misused) -> None:
    refused(misused, lambda step, x, y: None, r"without step.backward for share 0 of step 1(.|\n)*count=0 is fine")


def test_a_plain_loop_s_backward_is_refused(misused: Misused) -> None:
    """The commonest mistake of someone who moves a script over."""

    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        misused.loss(x, y).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it

    refused(misused, body, r"without step.backward(.|\n)*not loss.backward\(\)")


def test_a_plain_loop_s_optimizer_step_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        misused.good(step, x, y)
        misused.optimizer.step()

    refused(misused, body, r"optimizer.step\(\) was called in the loop(.|\n)*update=Update\(apply=function\)")


def test_a_share_iterated_twice_is_refused(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        for _ in step:
            pass

    with pytest.raises(StepError, match="a step's shares are read once"):
        misused.train(body)


def test_a_break_in_the_inner_loop_is_refused(misused: Misused) -> None:
    before = misused.state

    def breaking() -> None:
        with misused.run as run:
            for step in run:
                for x, y in step:
                    misused.good(step, x, y)
                    break

    with pytest.raises(StepError, match=r"step 0 was left before its inner loop ended(.|\n)*run.stop"):
        breaking()
    assert misused.state == before


def test_backward_and_add_outside_the_inner_loop_are_refused(misused: Misused) -> None:
    with misused.run as run:
        for step in run:
            for x, y in step:
                misused.good(step, x, y)
            with pytest.raises(StepError, match=r"step.add was called outside the inner loop"):
                step.add(late=1)
            with pytest.raises(StepError, match=r"step.backward was called outside the inner loop"):
                step.backward(next(misused.model.parameters()).sum(), count=1)


@pytest.mark.parametrize(
    ("value", "match"),
    [("a word", "takes a number or a tensor of numbers, not str"), (torch.ones(2), "shape")],
)
def test_what_cannot_be_summed_is_refused(misused: Misused, value: Any, match: str) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        misused.good(step, x, y)
        step.add(found=1)
        step.add(found=value)

    refused(misused, body, match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"accept": ["sead"]}, r"take a list of field names, not sead; they are .*threads"),
        ({"buffers": {"1.running_maen": "keep"}}, r"buffers= names 1.running_maen; the model has .*1.running_mean"),
        ({"buffers": {"1.running_mean": "median"}}, r"'first', 'keep', .* fit any"),
        ({"buffers": {"1.num_batches_tracked": "mean"}}, r"torch.int64"),
    ],
    ids=["accept", "buffers-name", "buffers-rule", "buffers-kind"],
)
def test_names_that_nothing_has_are_refused_at_the_start(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    made = Misused(tmp_path / "run", **options)
    before = made.state
    with pytest.raises(ConfigError, match=match):
        made.train()
    assert made.state == before


def test_a_run_outside_its_with_block_is_refused(tmp_path: Path) -> None:
    run = Misused(tmp_path / "run").run
    with pytest.raises(ConfigError, match=r"inside its with-block: with elastic\.Run"):
        next(iter(run))
    with pytest.raises(ConfigError, match="inside its with-block"):
        run.evaluate([1], lambda x: {})


def test_an_evaluation_of_nothing_or_that_returns_no_sums_is_refused(misused: Misused) -> None:
    with misused.run as run:
        with pytest.raises(ConfigError, match="needs a dataset with a length above 0"):
            run.evaluate([], lambda x: {"n": 1})
        with pytest.raises(StepError, match="returned a int; expected a dict of sums by name"):
            run.evaluate([1.0, 2.0], lambda x: 1)  # type: ignore[arg-type, return-value]  # the misuse
        assert run.evaluate([1.0, 2.0], lambda x: {"sum": x.sum()}) == {"sum": 3.0}


def test_an_exception_in_the_body_leaves_a_run_that_goes_on(misused: Misused) -> None:
    def body(step: elastic.Step, x: torch.Tensor, y: torch.Tensor) -> None:
        misused.good(step, x, y)
        raise ZeroDivisionError("in the user's own code")

    refused(misused, body, "in the user's own code", ZeroDivisionError)


def test_a_break_after_an_applied_step_keeps_all_of_it(tmp_path: Path) -> None:
    """Leaving the outer loop ends the run with the state of that step, BatchNorm's averages included."""
    states = []
    for name, end in (("break", None), ("stop", "enough")):
        made = Misused(tmp_path / name)
        with made.run as run:
            for step in run:
                for x, y in step:
                    made.good(step, x, y)
                    if end is not None and step.index == 1:
                        run.stop(end)
                if end is None and step.index == 1:
                    break
        states.append(made.state)
        resumed = Misused(tmp_path / name)
        resumed.train()
        assert (resumed.run.step_index, resumed.run.finished) == (2, True)
        assert resumed.state == made.state
    assert states[0] == states[1]

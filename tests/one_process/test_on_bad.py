"""Which steps are bad is a function of what a step gave and of the steps before it, and travels as plain values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.__main__ import main
from elastic.errors import ConfigError
from elastic.state.health import Health, Passed
from elastic.state.on_bad import SCALE_FLOOR, OnBad, Signs, too_many, why_bad
from elastic_checkpoint import Checkpointer, digest
from tests.kit.arguments import grouped

NAN, INF = math.nan, math.inf
CALM = [1.0 + 0.01 * (i % 5) for i in range(16)]


def test_what_is_not_finite_is_bad_with_no_bound_at_all() -> None:
    rule = OnBad("skip")
    assert why_bad(rule, Signs(1.0, 1.0), [], []) is None
    assert why_bad(rule, Signs(NAN, 1.0), [], []) == "the loss is nan"
    assert why_bad(rule, Signs(-INF, 1.0), [], []) == "the loss is -inf"
    assert why_bad(rule, Signs(1.0, INF), [], []) == "the gradient's norm is inf"
    assert why_bad(rule, Signs(None, NAN), [], []) == "the gradient's norm is nan"
    assert why_bad(rule, Signs(1e30, 1e30), CALM, CALM) is None


def test_a_scaler_deals_with_infinities_until_its_scale_is_at_the_floor() -> None:
    """Its first scales are too high on purpose; a loss it cannot help."""
    rule = OnBad("skip")
    assert why_bad(rule, Signs(1.0, INF, scale=2.0 * SCALE_FLOOR), [], []) is None
    assert why_bad(rule, Signs(1.0, NAN, scale=65536.0), [], []) is None
    assert "scale is 1 already" in (why_bad(rule, Signs(1.0, INF, scale=SCALE_FLOOR), [], []) or "")
    assert why_bad(rule, Signs(INF, INF, scale=65536.0), [], []) == "the loss is inf"


def test_a_spike_lies_far_above_the_steps_before_it() -> None:
    rule = OnBad("skip", spike=10, window=16)
    assert why_bad(rule, Signs(1.16, 1.0), CALM, CALM) is None
    assert (why_bad(rule, Signs(1.17, 1.0), CALM, CALM) or "").startswith(
        "the loss is 1.17, a spike: the last 16 steps"
    )
    assert (why_bad(rule, Signs(1.0, 5.0), CALM, CALM) or "").startswith("the gradient's norm is 5, a spike")
    assert why_bad(rule, Signs(0.0, 0.0), CALM, CALM) is None  # far below is no spike
    assert why_bad(rule, Signs(1.3, 5.0), CALM[1:], CALM[1:]) is None  # too few yet
    assert why_bad(rule, Signs(1.05, 1.05), [1.0] * 16, [1.0] * 16) is None  # a hundredth of the median at least


def test_a_limit_ends_a_run_that_is_bad_again_and_again() -> None:
    rule = OnBad("skip", in_a_row_max=3, in_all_max=5)
    assert too_many(rule, in_a_row=2, in_all=4) is None
    assert "in a row" in (too_many(rule, in_a_row=3, in_all=3) or "")
    assert "in_all_max is 5" in (too_many(rule, in_a_row=0, in_all=5) or "")
    assert too_many(OnBad("skip", in_all_max=None), in_a_row=0, in_all=10_000) is None


values = st.floats(0.1, 100.0) | st.sampled_from([NAN, INF])


@given(st.lists(st.tuples(values, values), max_size=60), st.integers(0, 60))
def test_a_resume_anywhere_decides_as_if_it_had_never_stopped(given_: list[tuple[float, float]], cut: int) -> None:
    """What travels is JSON, so a save, a newcomer and a worker that takes a step over know the same."""
    rule = OnBad("skip", spike=6, window=8)

    def train(health: Health, steps: list[tuple[int, tuple[float, float]]]) -> list[str | None]:
        found = []
        for step, (loss, size) in steps:
            sign = Signs(loss, size)
            why = health.why_bad(sign)
            found.append(why)
            if why is None:
                health.step_applied(sign)
            else:
                health.step_passed_over(Passed(step, step, why))
        return found

    steps = list(enumerate(given_))
    whole, before, after = Health(rule), Health(rule), Health(rule)
    expected = train(whole, steps)
    first = train(before, steps[:cut])
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))

    assert first + train(after, steps[cut:]) == expected
    assert after.state_dict() == whole.state_dict()
    assert after.digest() == whole.digest()
    assert after.difference(whole.state_dict()) is None


def test_a_rollback_takes_recent_values_back_and_no_memory_of_what_was_passed_over() -> None:
    rule = OnBad("rollback", spike=6, window=8)
    health = Health(rule)
    for value in range(1, 6):
        health.step_applied(Signs(float(value), 1.0))
    saved = health.state_dict()
    health.step_passed_over(Passed(5, 5, "nan"))
    health.step_applied(Signs(9.0, 1.0))
    before = health.copy()
    health.load_state_dict(saved)
    health.went_back(before)
    health.step_passed_over(Passed(5, 7, "inf"))

    state = health.state_dict()
    assert state["losses"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert health.ranges() == [[5, 8]]
    assert [one.why for one in health.passed] == ["nan", "inf"]
    assert (health.why(4), health.why(5), health.why(6), health.why(8)) == (None, "inf", "inf", None)
    assert health.difference(saved) == "what became of step 5, step 7"


def test_a_run_without_on_bad_has_nothing_to_say_unless_something_was_passed_over() -> None:
    """Its states stay what they were; and a record is not lost where a later launch leaves on_bad out."""
    health = Health(None)
    assert health.is_blank
    assert health.why_bad(Signs(NAN, NAN)) is None
    health.load_state_dict({"losses": [], "norms": [], "in_a_row": 1, "passed": [{"first": 2, "step": 2, "why": "x"}]})
    assert not health.is_blank


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "ignore"},
        {"loss": ""},
        {"spike": 0},
        {"spike": True},
        {"spike": INF},
        {"window": 3},
        {"in_a_row_max": 0},
        {"in_all_max": 0},
    ],
)
def test_bounds_that_cannot_work_are_refused_by_name(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(ConfigError, match="on_bad=" if name == "action" else f"OnBad\\({name}="):
        elastic.OnBad(**{"action": "skip", **wrong})


Body = Callable[[elastic.Run, nn.Module], None]


def trained(
    url: Path, body: Body | None = None, *, bad: tuple[int, ...] = (), bias: float | None = None, **given: Any
) -> dict[str, torch.Tensor]:
    """What twelve steps of one worker make of a linear layer. bad: steps whose loss is no number   bias: at first"""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    if bias is not None:
        nn.init.constant_(model.bias, bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    named = {"save_every": 4, "batch_size": 4, "virtual_workers": 2, "steps": 12, "optimizer": optimizer, **given}
    data = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
    with elastic.Run(url, model=model, **grouped({"dataset": TensorDataset(data), **named})) as run:
        for step in run:
            for batch in step:
                x = batch if isinstance(batch, torch.Tensor) else batch[0]
                loss = model(x).square().sum() * (NAN if step.index in bad else 1.0)
                step.add(loss=loss)
                step.backward(loss, count=len(x))
            if body is not None:
                body(run, model)
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_skipped_step_leaves_no_trace_but_its_place(tmp_path: Path) -> None:
    """As if the update had been left out there; the rest is what it was."""

    def update(run: elastic.Run, step: elastic.Step) -> None:
        if step.index != 5:
            run.optimizers["optimizer"].step()

    skipped = trained(tmp_path / "skipped", bad=(5,), on_bad="skip")
    assert same(skipped, trained(tmp_path / "left out", apply=update))
    assert not same(skipped, trained(tmp_path / "all"))


def test_a_run_that_nothing_befalls_ends_with_the_same_bits_whatever_on_bad_says(tmp_path: Path) -> None:
    plain = trained(tmp_path / "none")
    for number, rule in enumerate(["stop", "skip", "rollback", elastic.OnBad("skip", spike=50, window=8)]):
        assert same(plain, trained(tmp_path / str(number), on_bad=rule))


def test_stop_ends_before_the_update_and_nothing_is_saved_behind_it(tmp_path: Path) -> None:
    with pytest.raises(elastic.BadStep, match="step 5 is bad: the loss is nan") as ended:
        trained(tmp_path / "run", bad=(5,), on_bad="stop")
    assert (ended.value.step, ended.value.why) == (5, "the loss is nan")
    with Checkpointer(tmp_path / "run") as runs:
        assert [one.step for one in runs.list()] == [4, 0]
    finished = trained(tmp_path / "run", on_bad="stop")
    assert same(finished, trained(tmp_path / "well"))


def test_weights_that_are_no_numbers_are_not_saved_and_named(tmp_path: Path) -> None:
    """What the script does to them between two steps no gradient shows."""

    def spoil(run: elastic.Run, model: nn.Module) -> None:
        if run.step_index == 8:
            with torch.no_grad():
                model.bias[1] = INF  # type: ignore[operator]

    with pytest.raises(elastic.WeightsNotFinite, match=r"after 8 steps .*: bias \(1 of 2 numbers\)") as found:
        trained(tmp_path / "run", spoil, on_bad="skip")
    assert (found.value.parameter, found.value.step) == ("bias", 8)
    with Checkpointer(tmp_path / "run") as runs:
        assert runs.list()[0].step == 4


def test_initial_weights_that_are_no_numbers_are_not_saved_either(tmp_path: Path) -> None:
    """They would be what the repaired script goes on from, again and again."""
    with pytest.raises(elastic.WeightsNotFinite, match=r"after 0 steps .*: bias \(2 of 2 numbers\)"):
        trained(tmp_path / "run", bias=INF, on_bad="stop")
    assert same(trained(tmp_path / "run", bias=0.5, on_bad="stop"), trained(tmp_path / "good", bias=0.5))


def test_a_rollback_needs_saves_that_do_not_depend_on_the_clock(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="save_every=500"):
        trained(tmp_path / "run", on_bad="rollback", save_every="10min")


def test_what_decides_what_is_passed_over_is_part_of_the_identity(tmp_path: Path) -> None:
    """Another bound would pass over other steps; a run may be stopped by a bound that it did not have."""
    trained(tmp_path / "run", steps=8)
    trained(tmp_path / "run", steps=8, on_bad="stop")
    with pytest.raises(elastic.IdentityMismatch, match="on_bad"):
        trained(tmp_path / "run", on_bad="skip")
    trained(tmp_path / "run", on_bad="skip", accept=["on_bad"], bad=(9,))
    with Checkpointer(tmp_path / "run") as runs:
        assert runs.read().tree["health"]["passed"] == [{"first": 9, "step": 9, "why": "the loss is nan"}]


def test_streams_go_on_where_a_rollback_takes_the_weights_back(tmp_path: Path) -> None:
    """The position of the data never goes back: no line is read a second time."""
    for number in range(2):
        (tmp_path / f"lines-{number}.txt").write_text("\n".join(f"{number} {line} 1" for line in range(60)))
    read: list[str] = []

    def decode(line: bytes) -> torch.Tensor:
        read.append(line.decode())
        return torch.tensor([float(one) for one in line.split()])

    def run(name: str, **given: Any) -> dict[str, torch.Tensor]:
        read.clear()
        files = [str(tmp_path / f"lines-{number}.txt") for number in range(2)]
        return trained(tmp_path / name, dataset=elastic.Streams.lines(files, decode), **given)

    well = run("well")
    in_order = list(read)
    back = run("back", bad=(6,), on_bad="rollback")

    assert read == in_order
    assert len(set(read)) == 48
    assert not same(well, back)
    with Checkpointer(tmp_path / "back") as runs:
        assert runs.read().tree["health"]["passed"] == [{"first": 4, "step": 6, "why": "the loss is nan"}]


def train_with_a_bad_example(url: Path, **options: Any) -> nn.Module:
    """Example 170 of 400 holds a NaN; saves after 5 steps each."""
    elastic.seed(0)
    inputs = torch.randn(400, 8)
    labels = inputs[:, :3].argmax(1)
    inputs[170, 2] = NAN
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=TensorDataset(inputs, labels), batch_size=40, virtual_workers=4,
        epochs=3, save_every=5, **grouped(options, keep=2), seed=1,
    ) as run:  # fmt: skip
        for x, y in run.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def test_a_run_of_nan_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default it goes on; but it is told of, what was healthy stays, and the same command goes on from there."""
    train_with_a_bad_example(tmp_path / "run")
    said = capsys.readouterr().err
    (step,) = re.findall(r"NOT FINITE: in step (\d+) the gradient's norm is nan", said)
    assert "of its 40 examples these hold numbers that are not finite: 170\n" in said
    assert said.count("NOT FINITE") == 1
    saved = Checkpointer(tmp_path / "run").list()
    healthy = [one.step for one in saved if "unfit" not in one.meta]
    assert [one.step for one in saved if "unfit" in one.meta] == [30, 25]
    assert healthy == [at for at in range(25, -1, -5) if at <= int(step)][:2]
    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("NOT FINITE, finished")

    train_with_a_bad_example(tmp_path / "run", on_bad="skip", accept=["on_bad"])
    said = capsys.readouterr().err
    assert f"resuming after step {healthy[0]} of 30" in said
    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("finished")
    undisturbed = train_with_a_bad_example(tmp_path / "other", on_bad="skip")
    assert digest(undisturbed) == digest(Checkpointer(tmp_path / "run").read().tree["model"])

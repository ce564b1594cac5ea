"""`load(..., cast=)`: a checkpoint in one dtype into a state in another, where it was asked for and never wrongly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastic_checkpoint import Checkpointer, CheckpointError, StateMismatch, digest

Make = Callable[..., Checkpointer]
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def build(dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(dtype)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def train(state: dict[str, Any]) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.randn(5, 3).to(next(state["model"].parameters()).dtype)).square().sum().backward()
    state["optimizer"].step()


@pytest.fixture
def runs(tmp_path: Path, checkpointer: Make) -> Checkpointer:
    """One checkpoint, in float32, of one step of training."""
    made = checkpointer(tmp_path)
    state = build(FP32)
    train(state)
    made.save(7, state)
    return made


@pytest.mark.parametrize("cast", [True, BF16, {"model.*": True, "optimizer.*": BF16}])
def test_a_state_of_another_dtype_is_filled_and_trains_on(runs: Checkpointer, cast: Any) -> None:
    saved, here = runs.read().tree, build(BF16)
    step = runs.load(here, cast=cast)

    assert step == 7
    assert step.cast["model.0.weight"] == step.cast["optimizer.state[0].exp_avg"] == "float32 to bfloat16"
    assert len(step.cast) == 6 + 2 * 4  # the batches that were counted, and the optimizer's steps, are no such numbers
    for name, value in here["model"].state_dict().items():
        assert torch.equal(value, saved["model"][name].to(value.dtype))
    moments = next(iter(here["optimizer"].state.values()))
    assert (moments["exp_avg"].dtype, moments["step"].dtype) == (BF16, FP32)
    assert torch.equal(moments["exp_avg"], saved["optimizer"]["state"][0]["exp_avg"].to(BF16))
    train(here)


def test_what_is_not_named_stays_as_it_was_saved_and_a_wider_dtype_changes_no_value(
    runs: Checkpointer, caplog: pytest.LogCaptureFixture
) -> None:
    here = build(FP64)
    runs.load(here, cast={"model.*": FP64})
    assert digest({name: value.to(FP32) for name, value in here["model"].named_parameters()}) == digest(
        {name: value for name, value in runs.read().tree["model"].items() if name.endswith(("weight", "bias"))}
    )
    assert next(iter(here["optimizer"].state.values()))["exp_avg"].dtype is FP32
    assert "step 7 was loaded with 6 cast: model.0.weight (float32 to float64), " in caplog.text


@pytest.mark.parametrize(
    ("cast", "refused"),
    [
        (None, {"model.0.weight", "model.0.bias"}),
        (False, {"model.0.weight", "model.0.bias"}),
        (FP16, {"model.0.weight", "model.0.bias"}),  # it is no float16 here
        ({"model.*.bias": True}, {"model.0.weight"}),
        ({"model.0.bias": False, "*": True}, {"model.0.bias"}),
    ],
)
def test_what_was_not_asked_for_is_refused_as_ever(runs: Checkpointer, cast: Any, refused: set[str]) -> None:
    here = {"model": torch.nn.Sequential(torch.nn.Linear(3, 4, dtype=BF16), torch.nn.BatchNorm1d(4))}
    before = digest(here)
    with pytest.raises(StateMismatch, match="with cast=True for another floating-point dtype") as caught:
        runs.load(here, strict=False, cast=cast)
    assert set(caught.value.misshaped) == refused
    assert digest(here) == before


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        (torch.tensor([1, 2]), torch.zeros(2)),
        (torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.int64)),
        (torch.tensor([1, 2]), torch.zeros(2, dtype=torch.int32)),
        (torch.tensor([True]), torch.zeros(1)),
        (torch.tensor([1.0]), torch.zeros(1, dtype=torch.complex64)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2, np.int32), np.zeros(2, np.int64)),
    ],
)
def test_integers_booleans_and_other_kinds_are_never_cast(
    saved: Any, here: Any, tmp_path: Path, checkpointer: Make
) -> None:
    runs = checkpointer(tmp_path)
    runs.save(1, {"x": saved})
    with pytest.raises(StateMismatch):
        runs.load({"x": here}, cast=True)


def test_a_value_beyond_the_largest_is_refused_before_anything_is_touched(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path)
    runs.save(
        1, {"a": torch.ones(2), "b": torch.tensor([65519.0, 65520.0, float("inf")]), "c": torch.tensor([463.0, 464.0])}
    )
    here = {
        "a": torch.zeros(2, dtype=FP16),
        "b": torch.zeros(3, dtype=FP16),
        "c": torch.zeros(2).to(torch.float8_e4m3fn),
    }
    before = copy.deepcopy(here)
    with pytest.raises(StateMismatch, match="b: saved float32 with 1 finite values that float16 cannot hold") as caught:
        runs.load(here, cast=True)
    assert set(caught.value.misshaped) == {"b", "c"}
    assert digest(here) == digest(before)


@pytest.mark.parametrize("cast", ["bfloat16", {"model.*": "x"}, {3: True}, 1, {"modle.*": True}])
def test_what_cannot_be_followed_is_said(runs: Checkpointer, cast: Any) -> None:
    here = build(BF16)
    before = digest(here)
    with pytest.raises(
        CheckpointError, match=r"cannot be followed|nothing that can be followed|no tensor has a name like"
    ):
        runs.load(here, cast=cast)
    assert digest(here) == before

"""load() fills live objects exactly, or changes nothing and says all that differs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastic_checkpoint import Checkpointer, NoCheckpoint, StateMismatch, digest

Make = Callable[..., Checkpointer]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: list[MakeOptimizer] = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, amsgrad=True),
    torch.optim.Adafactor,
    torch.optim.RMSprop,
    lambda p: torch.optim.LBFGS(p, max_iter=2),
    torch.optim.ASGD,
    torch.optim.Rprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
]


class Averages:
    """A stateful object of the user's own."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"n": 0}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "n" not in state:
            raise KeyError("n")
        self.values = state


def build(seed: int, make: MakeOptimizer, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)).to(dtype)
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "extra": {"averages": Averages(), "ema": torch.randn(3), "array": np.zeros(2)},
        "list": [torch.zeros(2), 5],
        "epoch": 0,
    }


def train(state: dict[str, Any], steps: int) -> list[float]:
    """Deterministic steps; returns the losses."""
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(6, 4, generator=generator).to(next(state["model"].parameters()).dtype)

        def closure(x: torch.Tensor = x) -> float:
            state["optimizer"].zero_grad()
            loss = state["model"](x).square().sum()
            loss.backward()
            return float(loss.detach())

        losses.append(float(state["optimizer"].step(closure)))
        state["scheduler"].step()
    return losses


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_as_if_nothing_had_happened(
    make: MakeOptimizer, dtype: torch.dtype, tmp_path: Path, checkpointer: Make
) -> None:
    one, other = build(1, make, dtype), build(2, make, dtype)
    train(one, 3)
    one["extra"]["averages"].values = {"n": 3, "m": torch.ones(2)}
    one["extra"]["array"][:] = 7
    one["epoch"], one["list"][1] = 4, "now a string"
    runs = checkpointer(tmp_path)
    runs.save(3, one)

    assert runs.load(other) == 3
    assert digest(other) == digest(one)
    assert other["extra"]["averages"].values["n"] == 3
    assert (other["epoch"], other["list"][1]) == (4, "now a string")
    assert train(other, 3) == train(one, 3)
    assert digest(other) == digest(one)


def test_fp32_state_of_a_bf16_parameter_is_not_truncated(tmp_path: Path, checkpointer: Make) -> None:
    """torch's own load_state_dict casts it to the parameter's dtype, and 16 of 24 bits are gone."""

    def keep_fp32_moments(state: dict[str, Any]) -> None:
        for values in state["optimizer"].state.values():
            values["exp_avg"] = torch.rand(values["exp_avg"].shape)
            values["nested"] = {"list": [torch.rand(2, dtype=torch.float64)]}

    one, other = (build(seed, torch.optim.AdamW, torch.bfloat16) for seed in (1, 2))
    train(one, 1)
    keep_fp32_moments(one)
    runs = checkpointer(tmp_path)
    runs.save(1, one)
    runs.load(other)

    for mine, theirs in zip(one["optimizer"].state.values(), other["optimizer"].state.values(), strict=True):
        assert theirs["exp_avg"].dtype is torch.float32
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
        assert torch.equal(mine["nested"]["list"][0], theirs["nested"]["list"][0])
        assert theirs["nested"]["list"][0].dtype is torch.float64


def test_one_error_lists_all_that_differs_and_nothing_was_touched(tmp_path: Path, checkpointer: Make) -> None:
    saved = build(1, torch.optim.AdamW)
    train(saved, 1)
    runs = checkpointer(tmp_path)
    runs.save(1, {**saved, "gone": 1})

    here = build(2, torch.optim.AdamW)
    here["model"] = torch.nn.Sequential(
        torch.nn.Linear(4, 9), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4, bias=False)
    )
    here["optimizer"] = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(2, 2))]} for _ in range(2)])
    here["extra"]["ema"] = torch.randn(3).double()
    here["extra"]["array"] = np.zeros(3)
    here["new"] = 3
    before = digest(here)
    with pytest.raises(StateMismatch) as caught:
        runs.load(here)

    assert digest(here) == before
    assert caught.value.missing == ["new"]
    assert set(caught.value.unexpected) == {"gone", "model.2.bias"}
    assert set(caught.value.misshaped) == {
        "model.0.weight",
        "model.0.bias",
        "optimizer.param_groups",
        "extra.ema",
        "extra.array",
    }
    assert caught.value.misshaped["model.0.weight"] == "saved float32[8, 4], here float32[9, 4]"
    assert "nothing was changed" in str(caught.value)


def test_optimizer_state_of_another_shape_is_found_before_anything_is_touched(
    tmp_path: Path, checkpointer: Make
) -> None:
    def single(shape: tuple[int, ...]) -> torch.optim.Optimizer:
        parameter = torch.nn.Parameter(torch.ones(shape))
        parameter.grad = torch.ones(shape)
        optimizer = torch.optim.Adam([parameter])
        optimizer.step()
        return optimizer

    runs = checkpointer(tmp_path)
    runs.save(1, {"optimizer": single((2, 3))})
    with pytest.raises(StateMismatch) as caught:
        runs.load({"optimizer": single((3, 2))})
    assert set(caught.value.misshaped) == {"optimizer.state[0].exp_avg", "optimizer.state[0].exp_avg_sq"}


def test_names_that_only_one_side_has_can_be_accepted_shapes_cannot(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path)
    runs.save(1, {"model": torch.nn.Linear(2, 3), "old": 1})
    here: dict[str, Any] = {"model": torch.nn.Linear(2, 3, bias=False), "new": 2}
    assert runs.load(here, strict=False) == 1
    assert digest(here) == digest({"model": {"weight": runs.read().tree["model"]["weight"]}})
    with pytest.raises(StateMismatch):
        runs.load({"model": torch.nn.Linear(2, 4)}, strict=False)


def test_what_was_left_alone_is_logged_once_and_returned_with_the_step(tmp_path: Path, checkpointer: Make) -> None:
    """As torch's load_state_dict returns missing and unexpected keys: a program may want to look."""
    lines: list[str] = []
    runs = checkpointer(tmp_path, log=lines.append)
    many = {f"old{i:02d}": torch.ones(1) for i in range(30)}
    runs.save(7, {"model": torch.nn.Linear(2, 3), "gone": {"w": torch.ones(1)}, **many})
    here: dict[str, Any] = {"model": torch.nn.BatchNorm1d(3, affine=False), "extra": torch.zeros(2)}
    lines.clear()
    step = runs.load(here, strict=False)
    assert step == 7
    assert json.dumps({"step": step}) == '{"step": 7}'
    assert step.missing == ("extra", "model.num_batches_tracked", "model.running_mean", "model.running_var")
    assert step.unexpected == ("gone", *many, "model.bias", "model.weight")
    [line] = lines
    assert line.startswith(
        "step 7 was loaded but for 4 missing, which stay as they were: extra, model.num_batches_tracked, "
    )
    assert "33 unexpected, which were not loaded: gone, old00, old01, " in line
    assert line.endswith("and 23 more")
    assert len(line) < 1000

    whole = runs.load({"model": torch.nn.Linear(2, 3), "gone": {"w": torch.zeros(1)}, **many}, strict=False)
    assert (whole, whole.missing, whole.unexpected) == (7, (), ())
    assert len(lines) == 1
    again = copy.deepcopy(step)
    assert (again, again.missing, again.unexpected) == (7, step.missing, step.unexpected)


def test_what_is_plain_here_becomes_what_was_saved(tmp_path: Path, checkpointer: Make) -> None:
    """A list of losses that has grown, a best result that was not there yet. Who handed a list or a dict in holds on to
    it: it stays the same object. A tuple, such as NumPy's state of its generator, is made anew in what holds it."""
    runs = checkpointer(tmp_path)
    generator = np.random.RandomState(3)
    saved = {"losses": [3.0, 2.0], "best": {"accuracy": 0.9}, "none": {"at": {"w": torch.ones(1)}}, "w": torch.ones(1)}
    runs.save(1, {**saved, "pair": (1, torch.ones(1)), "numpy": generator.get_state()})
    expected = generator.rand(5).tolist()
    losses: list[float] = []
    settings: dict[str, Any] = {"more": 1}
    pair = torch.zeros(1)
    here: dict[str, Any] = {"losses": losses, "best": settings, "none": {}, "w": torch.zeros(1), "pair": (2, pair)}
    here["numpy"] = generator.get_state()
    runs.load(here)
    assert (losses, settings, here["none"]["at"]["w"].item()) == ([3.0, 2.0], {"accuracy": 0.9}, 1.0)
    assert here["losses"] is losses
    assert here["pair"][0] == 1
    assert here["pair"][1] is pair
    assert pair.item() == 1.0
    generator.set_state(here["numpy"])
    assert generator.rand(5).tolist() == expected
    assert runs.load({**here, "losses": None, "best": None}) == 1
    with pytest.raises(StateMismatch, match="saved a list, here a dict"):
        runs.load({**here, "losses": {"x": torch.zeros(1)}})
    runs.save(2, (1, torch.ones(1)))
    with pytest.raises(StateMismatch, match="a tuple cannot be changed"):
        runs.load((2, torch.zeros(1)))


def test_nothing_is_loaded_into_what_cannot_hold_it(tmp_path: Path, checkpointer: Make) -> None:
    """torch's own load_state_dict returns as if it had loaded where a module is on the meta device."""
    runs = checkpointer(tmp_path)
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    runs.save(1, {"model": model, "optimizer": optimizer, "w": torch.ones(3)})
    with torch.device("meta"):
        empty = torch.nn.Linear(2, 3)
    here: dict[str, Any] = {
        "model": empty,
        "optimizer": torch.optim.SGD(empty.parameters(), momentum=0.9),
        "w": torch.zeros(3),
    }
    with pytest.raises(StateMismatch, match=r"meta device.*to_empty") as caught:
        runs.load(here)
    of_model, of_optimizer = {"model.weight", "model.bias"}, {"optimizer.state[0]", "optimizer.state[1]"}
    assert set(caught.value.misshaped) == of_model | of_optimizer
    assert not here["w"].any()
    model.zero_grad()
    with pytest.raises(StateMismatch, match="expanded"):
        runs.load({"model": model, "optimizer": optimizer, "w": torch.zeros(1).expand(3)})
    here["model"] = empty.to_empty(device="cpu")
    here["optimizer"] = torch.optim.SGD(empty.parameters(), momentum=0.9)
    assert runs.load(here) == 1
    assert torch.equal(empty.weight, model.weight)


class TwoEnds(torch.nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.emb, self.head = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        if tied:
            self.head.weight = self.emb.weight


def test_two_values_are_not_loaded_into_one_tensor(tmp_path: Path, checkpointer: Make) -> None:
    """Of weights that were saved untied, a model that ties them kept the last one; the other was gone in silence."""
    runs = checkpointer(tmp_path)
    runs.save(1, {"model": TwoEnds(tied=False), "a": torch.ones(2), "b": torch.full((2,), 2.0), "w": torch.ones(1)})
    model, one = TwoEnds(tied=True), torch.zeros(2)
    before = digest(model)
    with pytest.raises(StateMismatch, match=r"read\(\)\.tree") as caught:
        runs.load({"model": model, "a": one, "b": one, "w": (w := torch.zeros(1))})
    assert caught.value.misshaped.keys() == {"model.emb.weight", "a"}
    assert "shares memory with model.head.weight here" in caught.value.misshaped["model.emb.weight"]
    assert "shares memory with b here" in caught.value.misshaped["a"]
    assert (digest(model), one.tolist(), w.item()) == (before, [0.0, 0.0], 0.0)


def test_equal_bytes_may_be_tied_and_a_tied_tensor_fills_both(tmp_path: Path, checkpointer: Make) -> None:
    """Bytes, and not values: what is no number equals nothing, and the two zeros are equal."""
    runs = checkpointer(tmp_path)
    apart = TwoEnds(tied=False)
    with torch.no_grad():
        apart.emb.weight[0, 0] = torch.nan
        apart.head.weight.copy_(apart.emb.weight)
    runs.save(1, apart)
    tied = TwoEnds(tied=True)
    assert runs.load(tied) == 1
    assert digest(tied) == digest(apart)

    with torch.no_grad():
        tied.emb.weight.fill_(7)
    runs.save(2, tied)
    assert runs.load(apart) == 2
    assert apart.emb.weight is not apart.head.weight
    assert bool((apart.emb.weight == 7).all() and (apart.head.weight == 7).all())

    runs.save(3, {"a": torch.zeros(2), "b": -torch.zeros(2)})
    one = torch.ones(2)
    with pytest.raises(StateMismatch, match="shares memory with b here"):
        runs.load({"a": one, "b": one})
    assert one.tolist() == [1.0, 1.0]


def test_load_takes_the_newest_whole_one_or_the_step_that_is_asked_for(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path)
    with pytest.raises(NoCheckpoint):
        runs.load({"x": torch.zeros(1)})
    for step in (1, 2):
        runs.save(step, {"x": torch.full((1,), float(step))})
    here = {"x": torch.zeros(1)}
    assert (runs.load(here, step=1), here["x"].item()) == (1, 1.0)
    assert (runs.load(here), here["x"].item()) == (2, 2.0)


def test_a_new_run_begins_with_the_default(tmp_path: Path) -> None:
    """Only where there is no checkpoint at all: one that is damaged or of another step is no new beginning."""
    state = {"x": torch.ones(3), "epoch": 4}
    with Checkpointer(tmp_path) as runs:
        assert runs.load(state, default=0) == 0
        assert (state["epoch"], runs.load(state, default=7).missing) == (4, ())
        commit = runs.save(3, state)
        assert runs.load(state, default=0) == 3
        with pytest.raises(NoCheckpoint):
            runs.load(state, step=2, default=0)
        (tmp_path / commit.id.shard_key(0)).unlink()
        with pytest.raises(NoCheckpoint):
            runs.load(state, default=0)

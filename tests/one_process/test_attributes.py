"""Plain attributes of modules are carried, or refused by name at one worker as at many: no state_dict has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import elastic
import elastic_checkpoint
from elastic.errors import ConfigError, StepError
from elastic.state.attributes import Attributes
from elastic.state.modules import modules
from tests.one_process.test_loop_rules import Share, Small


class Keeping(nn.Module):
    """`keep` does as it likes with the module's attributes, in train mode and in eval mode."""

    def __init__(self, keep: Any = None) -> None:
        super().__init__()
        elastic.seed(1)
        self.keep = keep
        self.mean = torch.zeros(4)
        self.count = 0
        self.scale = 1.0
        self.rate = nn.Dropout(0.4)
        self.out = nn.Linear(4, 2)
        self.more = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keep is not None:
            self.keep(self, x)
        scores: torch.Tensor = self.more(self.out(self.rate(x - self.mean))) * self.scale
        return scores


def running_mean(module: Any, x: torch.Tensor) -> None:
    module.mean = 0.9 * module.mean + 0.1 * x.detach().mean(dim=0)


def running_mean_in_place(module: Any, x: torch.Tensor) -> None:
    module.mean.lerp_(x.detach().mean(dim=0), 0.1)


def last_scale(module: Any, x: torch.Tensor) -> None:
    module.scale = float(x[0, 0])


def mode_by_the_first(module: Any, x: torch.Tensor) -> None:
    module.rate.train(bool(x[0, 0] > 0))


@pytest.mark.parametrize(
    ("keep", "match"),
    [
        (running_mean, "attribute mean became different in share 1 and an earlier one"),
        (running_mean_in_place, "attribute mean became different"),
        (last_scale, "attribute scale became different"),
        (mode_by_the_first, "attribute rate.training became different"),
    ],
)
def test_what_shares_leave_different_is_refused_by_name(tmp_path: Path, keep: Any, match: str) -> None:
    """A running mean that is no buffer: each worker had one of its own, in silence."""
    small = Small(tmp_path / "run", Keeping(keep))
    before = small.state
    with pytest.raises(StepError, match=match):
        small.train()
    assert small.state == before


def test_what_is_only_looked_at_can_be_kept_as_it_is(tmp_path: Path) -> None:
    plain = Small(tmp_path / "plain", Keeping()).train()
    model = Keeping(lambda module, x: setattr(module, "count", int(x[0, 0] * 1e6)))
    kept = Small(tmp_path / "kept", model, buffers={"count": "keep"}).train()
    assert kept.state == plain.state
    assert model.count == 0
    with pytest.raises(ConfigError, match="buffers= names cuont"):
        Small(tmp_path / "other", Keeping(), buffers={"cuont": "keep"}).train()


def test_caches_and_last_inputs_are_nobodys_state(tmp_path: Path) -> None:
    """A vision transformer notes the size of its last image, a mixture of experts its balance: no run ends of that."""

    def leaves(module: Any, x: torch.Tensor) -> None:
        module.last = x.detach()
        module.size = tuple(x.shape)
        module.penalty = (module.out.weight * x[0]).sum()
        if not hasattr(module, "table"):
            module.table = torch.arange(3.0)

    plain = Small(tmp_path / "plain", Keeping()).train()
    left = Small(tmp_path / "left", Keeping(leaves))
    assert left.train().state == plain.state
    assert left.model.table.tolist() == [0.0, 1.0, 2.0]  # type: ignore[operator]
    assert not hasattr(left.model, "last")


@pytest.mark.parametrize("kind", [tuple, lambda tensors: dict(zip("hc", tensors, strict=True))], ids=["tuple", "dict"])
def test_a_hidden_state_reaches_no_other_share(tmp_path: Path, kind: Any) -> None:
    """Of an LSTM that keeps its last one: which share came before depends on the world size. One that the script has
    built is refused by name."""
    found: list[Any] = []

    def recur(module: Any, x: torch.Tensor) -> None:
        found.append(module.hidden)
        module.hidden = kind([x.detach().mean(dim=0), x.detach().sum(dim=0)])

    model: Any = Keeping(recur)
    model.hidden = None
    small = Small(tmp_path / "run", model).train()
    assert small.state == Small(tmp_path / "plain", Keeping()).train().state
    assert found == [None] * len(found)
    assert model.hidden is None
    model.hidden = kind([torch.zeros(4), torch.zeros(4)])
    with pytest.raises(StepError, match="attribute hidden became different in share 1 and an earlier one"):
        Small(tmp_path / "other", model).train()


def test_a_dict_of_a_module_s_own_buffers_goes_on_naming_them(tmp_path: Path) -> None:
    model: Any = Keeping(lambda module, x: module.seen.add_(1))
    model.register_buffer("seen", torch.zeros(()))
    model.named = {"seen": model.seen}
    Small(tmp_path / "run", model, buffers={"seen": "agree"}).train()
    assert model.named["seen"] is model.seen
    assert model.seen > 0


def test_an_evaluation_leaves_attributes_as_they_were(tmp_path: Path) -> None:
    model = Keeping(lambda module, x: setattr(module, "count", module.count + 1))
    small = Small(tmp_path / "run", model)
    seen: list[int] = []

    def look(x: torch.Tensor, _: torch.Tensor) -> dict[str, torch.Tensor]:
        model(x)
        seen.append(model.count)
        return {"n": torch.tensor(len(x))}

    with small.run as run:
        for step in run:
            for share in step:
                small.backward(step, share)
            run.evaluate(small.data, look)
            assert model.count == step.index + 1
            assert set(seen) == {step.index + 2}
            seen.clear()


def annealed(small: Small, teacher: Keeping, *, die_after: int | None = None) -> list[Any]:
    """Attributes of the model and of a teacher change in the update, and between steps. Returns what they end as."""
    model: Any = small.model

    def update(run: elastic.Run, step: elastic.Step) -> None:
        for optimizer in small.optimizers.values():
            optimizer.step()
        model.scale = float(model.scale * np.exp(-0.1))
        model.mean = model.mean + 0.01
        teacher.count += 1
        teacher.scale = np.float64(teacher.scale * 0.9)

    def after(step: elastic.Step) -> None:
        model.rate.p *= 0.8
        if step.index == 1:
            teacher.eval()
        if step.index == die_after:
            raise KeyboardInterrupt

    def body(step: elastic.Step, share: Share) -> None:
        assert teacher.training == (step.index <= 1)
        small.backward(step, share)

    small.run.on_apply(update)
    small.train(body, after)
    return [model.scale, model.mean.tolist(), model.rate.p, teacher.count, float(teacher.scale), teacher.training]


@pytest.mark.parametrize("die_after", [0, 2])
def test_attributes_are_part_of_the_state(tmp_path: Path, die_after: int) -> None:
    """A resume, or a worker that joins, began with a temperature of 1 and a teacher in train mode."""

    def parts(folder: str) -> tuple[Small, Keeping]:
        teacher = Keeping()
        small = Small(tmp_path / folder, Keeping(), extra={"teacher": teacher}, update=lambda run, step: None)
        return small, teacher

    whole = annealed(*parts("whole"))
    with pytest.raises(KeyboardInterrupt):
        annealed(*parts("broken"), die_after=die_after)
    small, teacher = parts("broken")
    assert annealed(small, teacher) == whole
    assert small.state == checkpoint_state(tmp_path / "whole")


def checkpoint_state(url: Path) -> str:
    small = Small(url, Keeping(), extra={"teacher": Keeping()})
    with small.run as run:
        assert list(run) == []
    return small.state


def test_what_the_script_builds_holds_until_its_loop_begins() -> None:
    """What stands before the loop finds everything as at the run's first start."""
    model: Any = Keeping()
    attributes = Attributes(lambda: modules({"model": model}))
    assert attributes.state_dict() == {}
    attributes.load_state_dict({"model:scale": 0.5, "model:mean": torch.ones(4), "model.rate:p": 0.1})
    assert (model.scale, model.rate.p) == (1.0, 0.4)
    mean = model.mean
    attributes.begin_loop()
    assert (model.scale, model.rate.p) == (0.5, 0.1)
    assert model.mean is mean
    assert mean.tolist() == [1.0] * 4

    hidden = torch.ones(2)
    model.hidden = (hidden, 1)
    model.table = {"h": hidden}
    document, tensors = elastic_checkpoint.encode(attributes.state_dict())
    model.mean.zero_()
    hidden.zero_()
    model.count, model.scale = 3, 1.0
    attributes.load_state_dict(elastic_checkpoint.decode(document, tensors))  # of a step that was taken over
    assert (model.scale, model.rate.p, model.count) == (0.5, 0.1, 0)
    assert mean.tolist() == [1.0] * 4
    assert (model.hidden[0].tolist(), model.hidden[1], model.table["h"].tolist()) == ([1.0, 1.0], 1, [1.0, 1.0])

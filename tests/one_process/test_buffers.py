"""Buffers that cannot be carried are refused by name, at one worker as at many; evaluations leave all as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_checkpoint
from elastic.data.order import Sequential
from elastic.errors import StepError
from elastic.state.modules import roots
from elastic.state.rewound import Rewound
from tests.one_process.test_loop_rules import Small


class Moving(nn.Module):
    """In train mode and in eval mode, `move` does as it likes with the module's buffers."""

    def __init__(self, move: Any) -> None:
        super().__init__()
        self.kept: torch.Tensor
        self.move = move
        self.register_buffer("kept", torch.zeros(3))
        self.register_buffer("other", torch.tensor(0))
        self.out = nn.Linear(4, 2)
        self.more = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.move(self, x)
        scores: torch.Tensor = self.more(self.out(x))
        return scores


def by_the_first(module: Any, x: torch.Tensor) -> None:
    module.kept = torch.zeros(3 if x[0, 0] > 0 else 4)


def registered_for_some(module: Any, x: torch.Tensor) -> None:
    if x[0, 0] > 0:
        module.register_buffer("some", x.detach().sum())


@pytest.mark.parametrize(
    ("move", "match"),
    [
        (by_the_first, r"left float32\[\d\] in buffer kept, and an earlier one float32\[\d\]"),
        (registered_for_some, r"in buffer some, and an earlier one"),
        (
            lambda module, x: module.other.fill_(int(x[0, 0] * 1e6)),
            r"writes to buffers .*: other \(share 0\)",
        ),
    ],
    ids=["shape", "appears", "integer"],
)
def test_what_shares_leave_different_is_refused_by_name(tmp_path: Path, move: Any, match: str) -> None:
    small = Small(tmp_path / "run", Moving(move))
    before = small.state
    with pytest.raises(StepError, match=match):
        small.train()
    assert small.state == before


def test_an_evaluation_leaves_buffers_as_they_were_and_gives_each_batch_the_same(tmp_path: Path) -> None:
    """Observers move in eval mode, too: each rank came out of it with others, having seen other batches."""

    def counts(module: Any, x: torch.Tensor) -> None:
        module.kept = module.kept + 1
        module.other += 1

    small = Small(tmp_path / "run", Moving(counts), buffers={"kept": "agree", "other": "agree"})
    seen: list[tuple[float, int]] = []

    def look(x: torch.Tensor, _: torch.Tensor) -> dict[str, torch.Tensor]:
        small.model(x)
        seen.append((float(small.model.get_buffer("kept")[0]), int(small.model.get_buffer("other"))))
        return {"n": torch.tensor(len(x))}

    kept = small.model.get_buffer("kept")
    with small.run as run:
        before = elastic_checkpoint.digest(small.model)
        run.evaluate(small.data, look, batch_size=7)
        assert elastic_checkpoint.digest(small.model) == before
        assert small.model.get_buffer("kept") is kept
        assert seen == [(1.0, 1)] * 7
        run.stop("enough")
        for step in run:
            for share in step:
                small.backward(step, share)


def test_modules_are_found_in_what_extra_holds() -> None:
    class Holder:
        def __init__(self, **held: Any) -> None:
            self.__dict__.update(held)

    model, teacher, judge = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    average = Holder(module=teacher, optimizer=optimizer, past=[0.0] * 1000)
    average.__dict__["itself"] = average
    found = roots({"model": model}, {"average": average, "trainer": Holder(parts={"judge": [judge]}), "alone": judge})
    assert found == {
        "model": model,
        "extra.average.module": teacher,
        "extra.trainer.parts.judge.0": judge,
        "extra.alone": judge,
    }


def test_buffers_that_the_script_changes_between_steps_come_as_the_update_left_them() -> None:
    model = nn.Module()
    for name, value in (("assigned", torch.ones(2)), ("written", torch.ones(2)), ("large", torch.ones(1 << 19))):
        model.register_buffer(name, value)
    rewound = Rewound()
    rewound.note({"model": model})
    model.assigned = torch.zeros(2)
    model.get_buffer("written").data.zero_()

    assert rewound.known({"model": model})
    state = rewound.state("model", model.state_dict())
    assert {name: value[0].item() for name, value in state.items()} == {"assigned": 1.0, "written": 1.0, "large": 1.0}
    assert state["large"].data_ptr() == model.get_buffer("large").data_ptr()

    model.get_buffer("large").zero_()  # for the first time: it was not copied
    assert not rewound.known({"model": model})
    rewound.update_begins({"model": model})
    rewound.note({"model": model})
    model.get_buffer("large").fill_(5.0)
    assert rewound.known({"model": model})
    assert rewound.state("model", model.state_dict())["large"][0] == 0


class Spectral(nn.Module):
    """A discriminator's layers, by both of torch's spectral norms, and layers derived from BatchNorm."""

    class Renorm(nn.BatchNorm1d):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6))
        self.norm = self.Renorm(6)
        self.two: nn.Module = nn.utils.spectral_norm(nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.two(self.norm(self.one(x)).relu())
        return scores


def test_what_torch_s_normalisation_layers_write_needs_no_rule(tmp_path: Path) -> None:
    """Spectral norm's vectors follow from the weights: they are those of one pass, and of unit length."""
    model = Spectral()
    Small(tmp_path / "run", model, batch_size=12, micro_batch_size=2).train()
    vectors = {name: one for name, one in model.named_buffers() if name.endswith(("_u", "_v"))}
    assert len(vectors) == 4
    for one in vectors.values():
        torch.testing.assert_close(one.norm(), torch.tensor(1.0), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "kept", "other"),
    [("first", 3.0, 3), ("keep", 0.0, 0), ("sum", 12.0, 12), ("mean", 4.0, None), (lambda values: values[-1], 5.0, 5)],
)
def test_a_rule_says_what_becomes_of_a_buffer(rule: Any, kept: float, other: int | None, tmp_path: Path) -> None:
    """Of three shares that count 3, 4 and 5 in one step; a mean was taken of all floats."""

    def counts(module: Any, x: torch.Tensor) -> None:
        if module.training:
            module.kept += float(x[0, 0])
            module.other += int(x[0, 0])

    points = torch.tensor([3.0, 4.0, 5.0]).repeat_interleave(4)[:, None].repeat(1, 4)
    data = TensorDataset(points, torch.arange(12) % 2)
    rules = {"kept": rule, "other": "first" if rule == "mean" else rule}
    model = Moving(counts)
    Small(tmp_path / "run", model, dataset=data, order=Sequential(), steps=1, buffers=rules).train()
    assert model.get_buffer("kept").tolist() == [kept] * 3
    assert int(model.get_buffer("other")) == (3 if other is None else other)

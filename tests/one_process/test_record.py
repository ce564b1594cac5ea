"""What a run of one worker leaves on record: each step, bit by bit; and nothing that goes wrong with it ends a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.record import Part, Record, read_record

STEPS = 6


def train(
    url: Path | str,
    *,
    changed: int | None = None,
    plain: bool = False,
    rate: float = 0.1,
    halved: str | None = None,
    **other: Any,
) -> None:
    """A run of six steps of four shares; changed: an example that is another one; halved: this weight's updates are."""
    elastic.seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(
        [
            {"params": [parameter], "lr": rate / 2 if name == halved else rate}
            for name, parameter in model.named_parameters()
        ]
    )
    points = torch.randn(72, 4)
    if changed is not None:
        points[changed, 0] += 1.0
    given: dict[str, Any] = {"dataset": TensorDataset(points, torch.arange(72) % 2), "batch_size": 12, "epochs": 1}
    given |= {"virtual_workers": 4, "save_every": 3, **other}
    with elastic.Run(url, model=model, optimizer=optimizer, **given) as run:
        if plain:
            for x, y in run.batches():
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            return
        for step in run:
            for x, y in step:
                loss = F.cross_entropy(model(x), y, reduction="sum")
                step.backward(loss, count=len(y))
                step.add(loss=loss, right=(model(x).argmax(1) == y).sum())


def first_difference(one: Record, other: Record) -> tuple[int, list[tuple[Part, str]]] | None:
    assert one.steps.keys() == other.steps.keys() == {*range(STEPS)}
    return next(((at, apart) for at, step in one.steps.items() if (apart := step.differs(other.steps[at]))), None)


@pytest.mark.parametrize("plain", [False, True])
def test_two_runs_of_one_script_have_the_same_record(plain: bool, tmp_path: Path) -> None:
    for name in ("one", "other"):
        train(tmp_path / name, plain=plain)
    one, other = read_record(tmp_path / "one"), read_record(tmp_path / "other")
    assert first_difference(one, other) is None
    assert (one.missing, one.twice, one.mode, one.shares) == ([], [], "exact", 4)
    assert all(step.norm for step in one.steps.values())
    assert all(read and (gave or plain) for step in one.steps.values() for read, gave in step.shares)
    assert [len(step.shares) for step in one.steps.values()] == [4] * STEPS
    assert [at for at, step in one.steps.items() if step.gradients and step.weights] == [0, 3, 5], "behind a save, last"
    assert plain or {type(step.sums["right"]) for step in one.steps.values()} == {int}


def test_another_example_is_named_by_its_share_at_the_first_step_that_reads_it(tmp_path: Path) -> None:
    train(tmp_path / "one")
    train(tmp_path / "other", changed=41)
    found = first_difference(read_record(tmp_path / "one"), read_record(tmp_path / "other"))
    assert found is not None
    at, [(part, said), *_] = found
    assert part is Part.READ
    assert said.startswith("other values are read by share ")
    noting = Noting()
    train(tmp_path / "noting", dataset=noting)
    assert at == noting.read.index(41) // 12


class Noting:
    """Notes which examples are read, in which order."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 72

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.read.append(index)
        return torch.ones(4), index % 2


@pytest.mark.parametrize("plain", [False, True])
def test_another_rate_shows_in_the_first_update(plain: bool, tmp_path: Path) -> None:
    train(tmp_path / "one", plain=plain)
    train(tmp_path / "other", plain=plain, rate=0.2)
    found = first_difference(read_record(tmp_path / "one"), read_record(tmp_path / "other"))
    assert found is not None
    assert (found[0], found[1][0][0]) == (0, Part.WEIGHTS)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("other", ["2.weight", "0.bias"])
def test_the_one_parameter_that_is_updated_otherwise_is_named(other: str, plain: bool, tmp_path: Path) -> None:
    """Behind a save the digest of each parameter, and of those before it, is on record."""
    train(tmp_path / "one", plain=plain)
    train(tmp_path / "other", plain=plain, halved=other)
    one, two = read_record(tmp_path / "one"), read_record(tmp_path / "other")
    found = first_difference(one, two)
    assert found is not None
    assert (found[0], found[1][0][0]) == (0, Part.WEIGHTS)
    assert found[1][0][1].endswith(f", first in {other}")
    assert one.steps[0].tensor_apart(two.steps[0]) == f"{other}, after step 0"
    assert one.steps[3].tensor_apart(two.steps[3]) == "0.weight, in its gradient of step 3"
    assert one.steps[1].tensor_apart(two.steps[1]) is None, "behind no save"
    assert one.steps[0].parameters == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_a_bad_step_is_on_record_as_passed_over(tmp_path: Path) -> None:
    train(tmp_path, update=elastic.Update(on_bad="skip"), changed=None, dataset=Poisoned())
    found = read_record(tmp_path)
    bad = [step for step in found.steps.values() if step.passed_over]
    assert [step.first for step in bad] == [step.step for step in bad]
    assert len(bad) == 1
    assert list(found.steps) == [*range(STEPS)]


class Poisoned:
    """One example holds no number."""

    def __len__(self) -> int:
        return 72

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float("nan")) if index == 17 else torch.ones(4) * index / 72, index % 2


def test_a_record_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "record").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "elastic.record"):
        train(tmp_path)
    said = [one for one in caplog.records if one.name == "elastic.record"]
    assert len(said) == 1, "once"
    assert "steps are not on record" in said[0].getMessage()


def test_steps_go_on_where_the_run_does(tmp_path: Path) -> None:
    for steps in (2, 4, STEPS):
        train(tmp_path / "run", epochs=None, steps=steps)
    train(tmp_path / "whole", epochs=None, steps=STEPS)
    found = read_record(tmp_path / "run")
    assert first_difference(found, read_record(tmp_path / "whole")) is None
    assert [step.claim for step in found.steps.values()] == [1, 1, 2, 2, 3, 3]

"""The same share, passed by two workers, gives the same bits, or nothing is applied, and they are named."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import elastic
import elastic_checkpoint
from elastic.data.data_plan import DataPlan
from elastic.membership.exit_statuses import AGAIN
from tests.kit.arguments import grouped
from tests.kit.ranks import Died, Raised, as_worker_of_torchrun, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=10, of="shares that are passed twice")

STEPS, SHARES = 12, 4


class Own(Dataset[Any]):
    """What it holds says nothing of its examples. scale: of them"""

    def __init__(self, scale: float) -> None:
        self.scale = {"of all": scale}

    def __len__(self) -> int:
        return 52  # the last four of an epoch are one share

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), self.scale["of all"] * index) + torch.rand(4), torch.tensor(index % 2)


@dataclass
class Script:
    """What a body may come to depend on."""

    rank: int
    run: elastic.Run
    bodies: int = 0


Weigh = Callable[[Script], float]


def counts_bodies(script: Script) -> float:
    return 1.0 + script.bodies / 100


def counts_them_later(script: Script) -> float:
    return counts_bodies(script) if script.run.step_index >= 5 else 1.0


def computes_wrongly(script: Script) -> float:
    return 1.0001 if script.rank == 1 else 1.0


def computes_wrongly_later(script: Script) -> float:
    return computes_wrongly(script) if script.run.step_index >= 5 else 1.0


def does_nothing(script: Script) -> float:
    return 1.0


def train(
    rank: int,
    world_size: int,
    port: int,
    url: str,
    weigh: Weigh,
    over_steps: bool,
    given: dict[str, Any],
    scale: Callable[[int], float] | None = None,
) -> str:
    """The weights' digest; by a loop over steps, or over batches. scale: of the data on a rank"""
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    data = Own(scale(rank) if scale is not None else 1.0)
    given = {"batch_size": 24, "virtual_workers": SHARES, "steps": STEPS, "save_every": 4} | given
    with elastic.Run(url, model=model, optimizer=optimizer, dataset=data, **grouped(given)) as run:
        script = Script(rank, run)
        if over_steps:
            for step in run:
                for x, y in step:
                    script.bodies += 1
                    loss = weigh(script) * F.cross_entropy(model(x), y, reduction="sum")
                    step.backward(loss, count=len(y))
                    step.add(loss=loss)
        else:
            for x, y in run.batches():
                script.bodies += 1
                optimizer.zero_grad()
                (weigh(script) * F.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return elastic_checkpoint.digest(model)


LOOPS = pytest.mark.parametrize("over_steps", [False, True], ids=["batches", "steps"])


def refusals(ended: list[Any]) -> list[str]:
    for end in ended:
        assert isinstance(end, Raised), end
        assert end.kind == "StepError", end.traceback
    return [end.text for end in ended]


def committed(url: Path) -> list[int]:
    with elastic_checkpoint.Checkpointer(url) as saved:
        return sorted(commit.step for commit in saved.list())


@LOOPS
@pytest.mark.parametrize(("weigh", "workers"), [(counts_bodies, 2), (counts_bodies, 3), (computes_wrongly, 2)])
def test_other_gradients_are_refused_in_the_first_step_by_all(
    tmp_path: Path, port: int, weigh: Weigh, workers: int, over_steps: bool
) -> None:
    here = socket.gethostname()
    for text in refusals(run_ranks(train, workers, port, str(tmp_path / "run"), weigh, over_steps, {})):
        assert " of step 0 was passed twice, by rank " in text
        assert f"rank 1 (on {here})" in text or weigh is counts_bodies
        assert "gave other gradients the second time: 0.bias" in text
        assert "one of these machines computes wrongly" in text
    assert committed(tmp_path / "run") == [0]


@LOOPS
@pytest.mark.parametrize("weigh", [counts_them_later, computes_wrongly_later])
def test_before_a_save_it_is_asked_again(tmp_path: Path, port: int, weigh: Weigh, over_steps: bool) -> None:
    url = tmp_path / "run"
    for text in refusals(run_ranks(train, 2, port, str(url), weigh, over_steps, {})):
        assert " of step 7 was passed twice, by rank " in text
    assert committed(url) == [0, 4]


@LOOPS
@pytest.mark.parametrize(
    ("weigh", "given", "step"),
    [(computes_wrongly, {}, 0), (computes_wrongly_later, {}, 7), (computes_wrongly_later, {"cross_check": 1.0}, 6)],
)
def test_of_three_two_say_which_one_is_wrong(
    tmp_path: Path, port: int, weigh: Weigh, given: dict[str, Any], step: int, over_steps: bool
) -> None:
    """It ends by its own error, and the others as where a peer is lost: torchrun starts all of them again.

    Step 5 is short, and rank 1 has no share of it."""
    url = tmp_path / "run"
    first, odd, third = run_ranks(train, 3, port, str(url), weigh, over_steps, given)
    assert first == third == Died(AGAIN)
    assert isinstance(odd, Raised)
    assert odd.kind == "ComputesWrongly", odd.traceback
    assert f"rank 1 (on {socket.gethostname()}) is wrong in share " in odd.text
    assert f" of step {step}, by what most workers agree on: other gradients: 0.bias" in odd.text
    assert max(committed(url)) <= step


@LOOPS
def test_of_all_shares_it_is_asked_in_every_step(tmp_path: Path, port: int, over_steps: bool) -> None:
    weigh, given = computes_wrongly_later, {"cross_check": 1.0}
    for text in refusals(run_ranks(train, 2, port, str(tmp_path / "run"), weigh, over_steps, given)):
        assert " of step 5 was passed twice, by rank " in text


@LOOPS
@pytest.mark.parametrize("weigh", [counts_bodies, computes_wrongly])
def test_in_fast_mode_shares_are_passed_alone_to_be_compared(
    tmp_path: Path, port: int, weigh: Weigh, over_steps: bool
) -> None:
    for text in refusals(run_ranks(train, 2, port, str(tmp_path / "run"), weigh, over_steps, {"mode": "fast"})):
        assert " of step 0 was passed twice, by rank " in text


def test_in_fast_mode_a_check_changes_no_result(tmp_path: Path, port: int) -> None:
    def trained(part: float | None) -> set[str]:
        given, url = {"mode": "fast", "cross_check": part}, str(tmp_path / str(part))
        return {*returned(run_ranks(train, 3, port, url, does_nothing, False, given))}

    assert trained(1.0) == trained(None)


def scaled_on_one(rank: int) -> float:
    return 1.0 + rank / 8


@LOOPS
def test_other_data_on_one_worker_is_refused_in_the_first_step(tmp_path: Path, port: int, over_steps: bool) -> None:
    """By number and field: each example holds its number, times what that worker has it scaled by; 0 is the same."""
    ended = run_ranks(train, 2, port, str(tmp_path / "run"), does_nothing, over_steps, {}, scaled_on_one)
    plan = DataPlan(dataset_length=52, batch_size=24, virtual_workers=SHARES, seed=0, steps=STEPS).step(0)
    for text in refusals(ended):
        found = re.search(
            r"share (\d) of step 0 was read twice, by rank .*, and the batches are not the same: (.*), and 2 more", text
        )
        assert found is not None, text
        read = plan.examples_of(range(int(found[1]), int(found[1]) + 1)).indices.tolist()
        assert found[2] == "; ".join(f"dataset[{number}], in [0]" for number in read if number)[: len(found[2])]
        assert found[2].count("dataset[") == 3


def test_where_machines_may_compute_other_bits_nobody_is_asked(tmp_path: Path, port: int) -> None:
    given = {"accept": ["processor"]}
    returned(run_ranks(train, 2, port, str(tmp_path / "run"), computes_wrongly, False, given))


class Failing(Own):
    """Its seventh read fails, whoever makes it."""

    reads = 0

    def __getitem__(self, index: int) -> Any:
        Failing.reads += 1
        if Failing.reads == 7:
            raise OSError("once")
        return super().__getitem__(index)


class OfLoaders(Own):
    def __getitem__(self, index: int) -> Any:
        found = torch.utils.data.get_worker_info()
        assert found is not None
        assert found.id == 0
        return super().__getitem__(index)


def reads(rank: int, world_size: int, port: int, url: str, kind: type[Own], given: dict[str, Any]) -> str:
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"batch_size": 24, "virtual_workers": SHARES, "steps": 2, "save_every": 1} | given
    with elastic.Run(url, model=model, optimizer=optimizer, dataset=kind(1.0), **grouped(given)) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return elastic_checkpoint.digest(model)


@pytest.mark.parametrize(
    ("kind", "given"),
    [(Failing, {"on_bad_example": "skip"}), (OfLoaders, {"num_workers": 1})],
    ids=["a read that fails once", "one that loaders alone can read"],
)
def test_what_cannot_be_read_twice_is_not_compared(
    tmp_path: Path, port: int, kind: type[Own], given: dict[str, Any]
) -> None:
    first, second = returned(run_ranks(reads, 2, port, str(tmp_path / "run"), kind, given))
    assert first == second


@LOOPS
@pytest.mark.parametrize("given", [{}, {"micro_batch_size": 3}], ids=["shares", "micro-batches"])
def test_a_check_changes_no_result(tmp_path: Path, port: int, given: dict[str, Any], over_steps: bool) -> None:
    """Nor where some workers have no share; nor in what is counted, and read."""

    def trained(workers: int, part: float | None) -> list[str]:
        url = tmp_path / f"{workers} {part}"
        return returned(
            run_ranks(train, workers, port, str(url), does_nothing, over_steps, {**given, "cross_check": part})
        )

    (unchecked,) = trained(1, None)
    found = {digest for workers in (1, 3, 4) for digest in trained(workers, 1.0)}
    assert found == {unchecked}

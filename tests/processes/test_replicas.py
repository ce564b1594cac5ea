"""Workers whose models part, by what their scripts do between two steps, are told so; none of them trains on unseen."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.events.reading import read_events
from elastic.membership.exit_statuses import AGAIN
from tests.kit.arguments import grouped
from tests.kit.ranks import Died, Raised, as_worker_of_torchrun, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=4, of="models that part")

STEPS = 8


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("offset", torch.zeros(()))
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.norm(self.dropout(self.layer(x))) / self.temperature + self.offset
        return scaled


class Meter:
    """Kept with the state."""

    def __init__(self) -> None:
        self.loss = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss = state["loss"]


@dataclass
class Script:
    """What its code between two steps sees."""

    run: elastic.Run
    model: Any
    optimizer: torch.optim.Optimizer
    average: Any
    meter: Meter
    dataset: Any
    loss: float


Between = Callable[[Script], None]


def scales_by_its_loss(script: Script) -> None:
    with torch.no_grad():
        script.model.layer.weight.mul_(1 - 0.01 * script.loss)


def clamps_on_the_coordinator(script: Script) -> None:
    if script.run.is_coordinator:
        with torch.no_grad():
            script.model.layer.weight.clamp_(-0.1, 0.1)


def resets_momentum_on_the_coordinator(script: Script) -> None:
    if script.run.is_coordinator:
        script.optimizer.state[script.model.layer.bias]["momentum_buffer"].zero_()


def moves_a_buffer_by_its_loss(script: Script) -> None:
    script.model.offset.fill_(script.loss)


def leaves_eval_on_on_the_coordinator(script: Script) -> None:
    if script.run.is_coordinator:
        script.model.eval()


def averages_on_the_coordinator(script: Script) -> None:
    if script.run.is_coordinator:
        script.average.update_parameters(script.model)


def replaces_a_module_on_the_coordinator(script: Script) -> None:
    if script.run.is_coordinator:
        script.model.dropout = nn.Identity()


def moves_it_in_the_end(script: Script) -> None:
    if script.run.step_index == STEPS:
        clamps_on_the_coordinator(script)


IN_TURN = {resets_momentum_on_the_coordinator, moves_a_buffer_by_its_loss}
"""What comes by only every few steps."""
APART: dict[Between, str] = {
    scales_by_its_loss: "weight layer.weight",
    clamps_on_the_coordinator: "weight layer.weight",
    resets_momentum_on_the_coordinator: "weight layer.bias, optimizer state of layer.bias",
    moves_a_buffer_by_its_loss: "buffer offset",
    leaves_eval_on_on_the_coordinator: "module model, module model.layer, module model.norm, module model.dropout",
    averages_on_the_coordinator: "weight extra.average.module.layer.weight",
    replaces_a_module_on_the_coordinator: "module model.dropout",
    moves_it_in_the_end: "weight layer.weight",
}


@dataclass
class Alike:
    """What a worker keeps for itself is its own affair, and what all do alike parts nobody."""

    losses: list[float] = field(default_factory=list)

    def __call__(self, script: Script) -> None:
        self.losses.append(script.loss)
        script.meter.loss = script.dataset.level = float(script.run.step_index)
        script.average.update_parameters(script.model)
        script.model.temperature = 1.0 + 0.1 * script.run.step_index
        script.model.dropout.train(script.run.step_index < 2)
        with torch.no_grad():
            script.model.layer.weight.clamp_(-0.2, 0.2)
            script.model.offset.add_(torch.rand(()))


def trains(rank: int, world_size: int, port: int, url: str, between: Between, accept: list[str]) -> str:
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(1)
    dataset: Any = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
    dataset.level = 0.0
    model, meter = Scaled(), Meter()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    given: dict[str, Any] = {"dataset": dataset, "batch_size": 12, "virtual_workers": 4, "epochs": 2, "accept": accept}
    extra = {"average": average, "meter": meter}
    with elastic.Run(url, model=model, optimizer=optimizer, extra=extra, **grouped(given)) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if run.stepped:
                between(Script(run, model, optimizer, average, meter, dataset, loss.item()))
    return elastic_checkpoint.digest(model)


@pytest.mark.parametrize(("between", "name"), APART.items(), ids=[between.__name__ for between in APART])
def test_models_that_part_are_found_and_what_of_them_is_named(
    port: int, tmp_path: Path, between: Between, name: str
) -> None:
    ended = run_ranks(trains, 2, port, str(tmp_path / "run"), between, [])

    last = STEPS - 1 if between is moves_it_in_the_end else 3 if between in IN_TURN else 0
    for end in ended:
        assert isinstance(end, Raised), end
        assert end.kind == "CollectiveMismatch", end.traceback
        assert "the workers no longer hold the same state" in end.text
        assert re.search(rf"^  found  {re.escape(name)}(?![.\w])", end.text, re.M), end.text
        assert f"rank 1 (on {socket.gethostname()}) holds another one than rank 0\n" in end.text
    events = read_events(tmp_path / "run")
    assert max(event["step"] for event in events if event["event"] == "step_applied") <= last
    assert not [event for event in events if event["event"] == "finished"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_all_do_alike_parts_nobody(port: int, tmp_path: Path, world_size: int) -> None:
    together = returned(run_ranks(trains, world_size, port, str(tmp_path / "run"), Alike(), []))
    alone = returned(run_ranks(trains, 1, port, str(tmp_path / "alone"), Alike(), []))
    assert {*together} == {*alone}


def flips(rank: int, world_size: int, port: int, url: str, what: str | None) -> str:
    """A bit of what only rank 1 holds, between two steps: in memory that no step's look comes by so soon."""
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(1)
    dataset = TensorDataset(torch.randn(48, 64), torch.arange(48) % 2)
    model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 512), nn.Linear(512, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    given: dict[str, Any] = {"dataset": dataset, "batch_size": 12, "virtual_workers": 6, "epochs": 3, "save_every": 4}
    given["cross_check"] = None  # which would find its gradients before
    with elastic.Run(url, model=model, optimizer=optimizer, **grouped(given)) as run:
        for x, y in run.batches():
            if rank == 1 and what is not None and run.step_index == 5:
                weight = model.get_parameter("1.weight")
                hit: torch.Tensor = weight if what == "weight" else optimizer.state[weight]["exp_avg"]
                ctypes.c_uint32.from_address(hit.data_ptr() + hit.nbytes - 4).value ^= 1 << 18
                what = None
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return elastic_checkpoint.digest(model)


@pytest.mark.parametrize("what", ["weight", "exp_avg"])
def test_what_not_all_hold_is_not_saved_and_the_machine_is_named(port: int, tmp_path: Path, what: str) -> None:
    whole = returned(run_ranks(flips, 3, port, str(tmp_path / "whole"), None))
    url = tmp_path / "run"
    first, odd, third = run_ranks(flips, 3, port, str(url), what)
    assert first == third == Died(AGAIN)
    assert isinstance(odd, Raised), odd
    assert odd.kind == "ComputesWrongly", odd.traceback
    assert "holds the same state as most after step 7: rank 1 (on " in odd.text
    assert "holds another one than rank 0, 2\n" in odd.text
    assert "1.weight" in odd.text
    with elastic_checkpoint.Checkpointer(url) as saved:
        assert [commit.step for commit in saved.list()] == [4, 0]
    assert returned(run_ranks(flips, 3, port, str(url), None)) == whole


def told_in(rank: int, world_size: int, port: int, url: str, between: Between) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        trains(rank, world_size, port, url, between, [])
    return said.getvalue()


def one_stops(script: Script) -> None:
    if script.run.rank == 1:
        script.run.stop("it is good")


def all_stop(script: Script) -> None:
    script.run.stop("it is good")


@pytest.mark.parametrize("between", [one_stops, all_stop])
def test_a_stop_that_one_worker_has_decided_says_so(port: int, tmp_path: Path, between: Between) -> None:
    """Its loss may be why; it may be a limit of time, too, so that it is no error."""
    told = "".join(returned(run_ranks(told_in, 2, port, str(tmp_path / "run"), between)))
    assert told.count("run.stop was called on rank 1 of 2, and ends the run for all") == (between is one_stops)

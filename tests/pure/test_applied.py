"""A worker that takes a step over still runs the code after it: what that code changes must come as it was before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import elastic_checkpoint
from elastic.state.applied import Applied
from elastic.state.data_access import watch
from elastic.state.modes import Modes
from elastic.state.trained import Trained
from elastic_checkpoint.load.apply import apply


class Counter:
    """An `extra=` object as scripts have it: a number, and a tensor."""

    def __init__(self) -> None:
        self.seen = 0
        self.total = torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
        self.total.copy_(state["total"])


def parts() -> tuple[nn.Linear, torch.optim.SGD, Any, Counter, Applied]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    counter = Counter()
    trained = Trained({"model": model}, {"optimizer": optimizer}, check=lambda: None)
    applied = Applied(
        {"scheduler": scheduler, "extra.counter": counter},
        {"optimizer": optimizer},
        trained,
        Modes(trained.modules),
    )
    return model, optimizer, scheduler, counter, applied


def given(applied: Applied, optimizer: torch.optim.Optimizer, scheduler: Any, counter: Counter) -> Any:
    objects = {"optimizer": optimizer, "scheduler": scheduler, "extra.counter": counter}
    return elastic_checkpoint.decode(*elastic_checkpoint.encode(applied.tree(objects)))


def test_plain_values_and_learning_rates_come_as_the_update_left_them() -> None:
    _, optimizer, scheduler, counter, applied = parts()
    counter.seen = 5
    applied.note()
    counter.seen += 1  # the script's code after the inner loop
    optimizer.param_groups[0]["lr"] = 0.125

    assert applied.known()
    tree = given(applied, optimizer, scheduler, counter)
    assert tree["extra.counter"]["seen"] == 5
    assert tree["optimizer"]["param_groups"][0]["lr"] == 1.0
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_a_tensor_that_changes_between_steps_for_the_first_time_cannot_be_given_and_from_then_on_can() -> None:
    _, optimizer, scheduler, counter, applied = parts()
    applied.note()
    counter.total += 1
    assert not applied.known()

    applied.update_begins()  # the next update begins
    applied.note()
    counter.total += 1
    assert applied.known()
    assert given(applied, optimizer, scheduler, counter)["extra.counter"]["total"].tolist() == [1.0, 1.0]


def test_a_tensor_that_only_the_update_changes_is_never_copied() -> None:
    """An average of a large model in on_apply: copying it at every step would cost what it weighs."""
    _, optimizer, scheduler, counter, applied = parts()
    for _ in range(3):
        applied.update_begins()
        counter.total += 1  # in the update
        applied.note()
    assert applied.known()
    tree = applied.tree({"optimizer": optimizer, "scheduler": scheduler, "extra.counter": counter})
    assert tree["extra.counter"]["total"].data_ptr() == counter.total.data_ptr()


def test_a_change_through_data_is_seen_although_it_counts_no_version() -> None:
    """The common way to write an average of weights."""
    _, optimizer, scheduler, counter, applied = parts()
    applied.note()
    counter.total.data.mul_(0.5).add_(1.0)
    assert not applied.known()
    applied.update_begins()
    applied.note()
    counter.total.data.add_(1.0)
    assert given(applied, optimizer, scheduler, counter)["extra.counter"]["total"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("written", ["weights", "data", "momentum", "new momentum"])
def test_a_state_whose_weights_were_written_after_the_update_is_not_given(written: str) -> None:
    """Clipped weights (WGAN), a decay by hand: who took the step over would do it once more, and differ for ever."""
    model, optimizer, _, _, applied = parts()
    watched = watch(applied.weights.accessed)
    try:
        model(torch.ones(1, 2)).sum().backward()
        applied.update_begins()
        optimizer.step()
        model.weight.data.mul_(0.5)  # in the update, this is as it should be
        applied.note()
        assert model.weight.data.norm() > 0  # looked at, and not written
        assert applied.known()

        momentum = optimizer.state[model.weight]
        if written == "weights":
            with torch.no_grad():
                model.weight.mul_(0.5)
        elif written == "data":
            model.weight.data.clamp_(-0.01, 0.01)
        elif written == "momentum":
            momentum["momentum_buffer"].zero_()
        else:
            momentum["momentum_buffer"] = torch.zeros(1, 2)
        assert not applied.known()

        applied.update_begins()
        applied.note()
        assert applied.known()
    finally:
        watched()


def test_what_is_given_can_be_applied_to_the_objects_of_another_worker() -> None:
    model, optimizer, scheduler, counter, applied = parts()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    counter.seen = 3
    applied.note()
    counter.seen = 4
    model.eval()
    optimizer.add_param_group({"params": [], "lr": 1.0})  # the other one still has to do this, too
    tree = given(applied, optimizer, scheduler, counter)
    assert set(tree.pop("trained")["names"]) == {"weight", "bias"}
    assert tree.pop("modes") == {"eval": [], "extra": []}

    _, other_optimizer, other_scheduler, other_counter, _ = parts()
    apply({"optimizer": other_optimizer, "scheduler": other_scheduler, "extra.counter": other_counter}, tree)
    assert other_counter.seen == 3
    assert other_scheduler.state_dict() == scheduler.state_dict()
    assert other_optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups.pop()
    assert elastic_checkpoint.digest(other_optimizer) == elastic_checkpoint.digest(optimizer)


def test_what_an_optimizer_keeps_under_a_name_of_its_own_is_given() -> None:
    """It was left out for a worker that took a step over, which then began at none."""
    model, optimizer, scheduler, counter, applied = parts()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.state["steps in all"] = 3  # type: ignore[index]
    applied.note()

    tree = given(applied, optimizer, scheduler, counter)
    assert tree["optimizer"]["state"]["steps in all"] == 3
    assert set(tree["optimizer"]["state"]) == {0, 1, "steps in all"}

"""A worker that takes a step over still runs the code after it: what that code changes must come as it was before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import checkpoint
from checkpoint.apply import apply
from elastic.state.applied import Applied


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
    applied = Applied({"scheduler": scheduler, "extra.counter": counter}, {"optimizer": optimizer})
    return model, optimizer, scheduler, counter, applied


def given(applied: Applied, optimizer: torch.optim.Optimizer, scheduler: Any, counter: Counter) -> Any:
    objects = {"optimizer": optimizer, "scheduler": scheduler, "extra.counter": counter}
    return checkpoint.decode(*checkpoint.encode(applied.tree(objects)))


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

    applied.look()  # the next update begins
    applied.note()
    counter.total += 1
    assert applied.known()
    assert given(applied, optimizer, scheduler, counter)["extra.counter"]["total"].tolist() == [1.0, 1.0]


def test_a_tensor_that_only_the_update_changes_is_never_copied() -> None:
    """An average of a large model in on_apply: copying it at every step would cost what it weighs."""
    _, optimizer, scheduler, counter, applied = parts()
    for _ in range(3):
        applied.look()
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
    applied.look()
    applied.note()
    counter.total.data.add_(1.0)
    assert given(applied, optimizer, scheduler, counter)["extra.counter"]["total"].tolist() == [1.0, 1.0]


def test_what_is_given_can_be_applied_to_the_objects_of_another_worker() -> None:
    model, optimizer, scheduler, counter, applied = parts()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    counter.seen = 3
    applied.note()
    counter.seen = 4
    tree = given(applied, optimizer, scheduler, counter)

    _, other_optimizer, other_scheduler, other_counter, _ = parts()
    apply({"optimizer": other_optimizer, "scheduler": other_scheduler, "extra.counter": other_counter}, tree)
    assert other_counter.seen == 3
    assert other_scheduler.state_dict() == scheduler.state_dict()
    assert other_optimizer.param_groups[0]["lr"] == 0.5
    assert checkpoint.digest(other_optimizer) == checkpoint.digest(optimizer)

"""Whatever of the state differs between workers is found and named, as soon as it comes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elastic.state.modules import buffer_entries, modules, roots
from elastic.state.replica import Replica, advice, difference, digest_of, told_of
from elastic.state.trained import Trained

LARGE = 3 * 4096 + 5  # bytes: of a weight that is not looked at whole


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.kept = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "kept": self.kept}


class Scaled(nn.Conv2d):
    scale = 1.0

    def get_extra_state(self) -> float:
        return self.scale

    def set_extra_state(self, state: float) -> None:
        self.scale = state


class Held:
    """All that a worker holds, built anew as every worker builds it."""

    def __init__(self, *, values: bool = True, width: int = 3) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), Scaled(2, 2, 3))
        self.teacher = nn.Linear(2, 2)
        self.counter = Counter()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        extra = {"teacher": self.teacher, "counter": self.counter, "it's": Counter()}
        for weight in self.model.parameters():
            weight.grad = torch.ones_like(weight)
        self.optimizer.step()
        self._trained = Trained({"model": self.model}, {"optimizer": self.optimizer}, lambda: None)
        self._walked = modules(roots({"model": self.model}, extra))
        entries = buffer_entries(self._walked)
        self._buffers = [(one.key, lambda one=one: one.module._buffers[one.attribute]) for one in entries]
        self.replica = Replica({"optimizer": self.optimizer}, extra, values=values)

    def digest(self, step: int) -> int:
        self.replica.follow(self._trained.now(), self._buffers, self._walked)
        return self.replica.digest(step)

    def parts(self) -> dict[str, str]:
        self.replica.follow(self._trained.now(), self._buffers, self._walked)
        return self.replica.parts()


def changes_a_weight(held: Held) -> None:
    with torch.no_grad():
        held.model[0].bias[1] += 1e-6


def changes_a_moment(held: Held) -> None:
    held.optimizer.state[held.model[0].weight]["exp_avg_sq"][2, 1] *= 2


def changes_a_count(held: Held) -> None:
    held.optimizer.state[held.model[0].weight]["step"] += 1


def changes_a_buffer(held: Held) -> None:
    held.model[1].running_mean[0] = 1


def changes_a_teacher(held: Held) -> None:
    with torch.no_grad():
        held.teacher.weight[1, 1] = 0


def changes_a_mode(held: Held) -> None:
    held.teacher.eval()


def counts(held: Held) -> None:
    held.counter.count += 1


def keeps(held: Held) -> None:
    held.counter.kept[2] = 1


CHANGES: dict[Callable[[Held], None], str] = {
    changes_a_weight: "weight 0.bias",
    changes_a_moment: "optimizer state of 0.weight",
    changes_a_count: "optimizer state of 0.weight",
    changes_a_buffer: "buffer 1.running_mean",
    changes_a_teacher: "weight extra.teacher.weight",
    changes_a_mode: "module extra.teacher",
    counts: "extra counter",
    keeps: "extra counter",
}


@pytest.mark.parametrize(("changes", "name"), CHANGES.items())
def test_a_change_is_found_within_one_lap_and_named(changes: Callable[[Held], None], name: str) -> None:
    one, other = Held(), Held()
    lap = range(3)
    assert [one.digest(step) for step in lap] == [other.digest(step) for step in lap]
    assert one.parts() == other.parts()

    changes(other)

    assert [one.digest(step) for step in lap] != [other.digest(step) for step in lap]
    assert difference([one.parts(), other.parts()]) == [name]
    assert digest_of(one.parts()) != digest_of(other.parts())


def test_every_byte_of_a_large_weight_comes_by() -> None:
    one, other = Held(width=LARGE // 8 + 1), Held(width=LARGE // 8 + 1)
    count = one.model[0].weight.numel()
    steps = range(20)
    same = [one.digest(step) for step in steps]
    for element in (0, 1023, 1024, count // 2, count - 1):
        with torch.no_grad():
            before = other.model[0].weight.view(-1)[element].item()
            other.model[0].weight.view(-1)[element] = 7.0
            assert [other.digest(step) for step in steps] != same, element
            other.model[0].weight.view(-1)[element] = before
    assert [other.digest(step) for step in steps] == same


def test_how_a_weight_lies_in_memory_does_not_count() -> None:
    """What a newcomer was given may lie otherwise than what the others have made."""
    one, other = Held(), Held()
    other.model.to(memory_format=torch.channels_last)
    assert not other.model[2].weight.is_contiguous()
    assert [one.digest(step) for step in range(3)] == [other.digest(step) for step in range(3)]
    assert one.parts() == other.parts()


def test_workers_that_may_compute_differently_are_not_compared_by_their_values() -> None:
    one, other = Held(values=False), Held(values=False)
    for changes in (changes_a_weight, changes_a_moment, changes_a_buffer, keeps, counts):
        changes(other)
    assert one.digest(0) == other.digest(0)
    assert one.parts() == other.parts()
    changes_a_mode(other)  # of which kind a module is, or whether it is in eval mode
    assert one.digest(0) != other.digest(0)


def test_an_object_that_is_known_to_differ_is_left_out() -> None:
    one, other = Held(), Held()
    counts(other)
    assert told_of(difference([one.parts(), other.parts()])) == ["extra counter"]
    assert told_of(["extra counter", "extra it's"]) == ["extra counter", "extra it's"]
    assert "extra it's" in one.parts()
    for held in (one, other):
        held.replica.leave_out(["extra counter"])
    assert one.digest(0) == other.digest(0)
    assert one.parts() == other.parts()
    changes_a_weight(other)
    assert told_of(difference([one.parts(), other.parts()])) is None


def test_what_people_can_do_depends_on_what_differs() -> None:
    assert "update=Update(buffers={'cache': 'keep'})" in advice(["module model.0", "buffer cache"])
    for names in (["weight 0.bias"], ["module model.0"]):
        assert "Update(buffers=" not in advice(names)
        assert "if run.is_coordinator:" in advice(names)


def test_an_extra_state_of_a_module_is_compared_in_the_end() -> None:
    one, other = Held(), Held()
    other.model[2].scale = 2.0
    assert difference([one.parts(), other.parts()]) == ["module state model.2._extra_state"]

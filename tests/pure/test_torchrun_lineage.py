"""Which of a script's steps are in its result follows from the weights with which it went on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from elastic.drill.torchrun.lineage import Restart, lineage, lost_and_repeated, worlds


def process(
    t: float, rank: int, size: int, begins: int | None, *steps: int, each: int = 1, cut: int = 0
) -> list[dict[str, Any]]:
    """A process that began with these weights, each of whose steps left others; it read `each` examples in each."""
    notes: list[dict[str, Any]] = [{"t": t, "rank": rank, "world_size": size, "pid": 1}]
    notes += [{"t": t + 1, "begins": [begins, cut]}] if begins is not None else []
    for at, step in enumerate(steps):
        read = {"points": [step * 10 + rank * each + one for one in range(each)]}
        notes.append({"t": t + 2 + at, "step": [step, cut], "read": read})
    return notes


def test_what_came_after_the_step_that_a_world_goes_on_from_is_done_once_more() -> None:
    before = [process(0, rank, 2, 0, 1, 2, 3, 4) for rank in (0, 1)]
    after = [process(20, rank, 2, 2, 3, 4, 5) for rank in (0, 1)]
    found = lineage(worlds([*after, *before]))
    assert [step.weights[0] for step in found.steps] == [1, 2, 3, 4, 5]
    assert found.restarts == [Restart(kept=2, redone=2, after_s=17, beyond_s=19, size=2)]
    assert found.read()["points"] == Counter([10, 11, 20, 21, 30, 31, 40, 41, 50, 51])
    assert not found.astray


def test_a_world_that_begins_anew_has_done_all_in_vain() -> None:
    found = lineage(worlds([process(0, 0, 1, 0, 1, 2), process(9, 0, 1, 0, 1, 2, 3)]))
    assert [restart.redone for restart in found.restarts] == [2]
    assert len(found.steps) == 3


def test_a_world_that_begins_with_weights_of_no_step_is_told_apart() -> None:
    assert lineage(worlds([process(0, 0, 1, 0, 1, 2), process(9, 0, 1, 7, 8)])).astray == 1


def test_a_world_that_comes_to_no_step_is_none_of_them() -> None:
    found = lineage(worlds([process(0, 0, 1, 0, 1), process(5, 0, 1, None), process(9, 0, 1, 1, 2)]))
    assert [restart.kept for restart in found.restarts] == [1]


def test_weights_that_workers_hold_in_parts_are_theirs_together_at_any_number() -> None:
    before = [process(0, rank, 2, 0, 0, 0, cut=5 + rank) for rank in (0, 1)]
    after = [process(9, 0, 1, 0, 0, cut=11)]
    assert not lineage(worlds([*before, *after])).astray


def test_examples_are_counted_as_often_as_they_were_trained_on() -> None:
    assert lost_and_repeated(Counter([1, 2, 3, 3]), Counter([2, 3, 3, 3, 4])) == (1, 2)

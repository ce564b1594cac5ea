"""What trainers' callbacks keep in attributes: what is carried, under which names, and what counts as a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import elastic_checkpoint
from elastic.errors import StepError
from elastic.state.own_attributes import Holder, OwnAttributes, by_class

Begins = Callable[[Any], None]


class Notes:
    """Anything that keeps something."""


def holding(*those: Any) -> OwnAttributes:
    return OwnAttributes(
        lambda: [Holder(name, one, lambda key, _: False) for name, one in by_class(those)], lambda _: False
    )


def after(built: dict[str, Any], begins: Begins, later: dict[str, Any]) -> Any:
    """What a process that resumes has, in which the hook of the beginning ran, too."""
    first, second = Notes(), Notes()
    vars(first).update(built)
    vars(second).update(built)
    kept, resumed = holding(first), holding(second)
    begins(first)
    kept.begin_step()
    vars(first).update(later)
    resumed.load_state_dict(elastic_checkpoint.decode(*elastic_checkpoint.encode(kept.state_dict())))
    begins(second)
    resumed.begin_step()
    return second


@pytest.mark.parametrize(("built", "begun"), [(False, True), (0, 10), ("cold", "warm")])
def test_what_has_come_back_to_how_it_was_built_is_carried(built: Any, begun: Any) -> None:
    """A budget that is used up: the hook of the beginning would fill it again."""

    def begins(notes: Any) -> None:
        notes.value = begun

    assert after({"value": built}, begins, {"value": built}).value == built


def test_who_a_process_is_and_where_it_writes_is_its_own_and_numbers_are_the_runs() -> None:
    processes = iter([(True, "log-1", 0), (False, "log-2", 60)])

    def begins(notes: Any) -> None:
        notes.is_main, notes.path, notes.begun_at = next(processes)

    resumed = after({}, begins, {})
    assert (resumed.is_main, resumed.path, resumed.begun_at) == (False, "log-2", 0)


def test_one_that_only_some_workers_have_moves_no_others_state() -> None:
    class Other:
        pass

    one, other = Notes(), Notes()
    kept = holding(Other(), one, other)
    vars(one)["value"], vars(other)["value"] = 1, 2
    first, second = Notes(), Notes()
    resumed = holding(first, second)
    resumed.load_state_dict(kept.state_dict())
    resumed.begin_step()
    assert (vars(first)["value"], vars(second)["value"]) == (1, 2)


@pytest.mark.parametrize("length", [64, 65])
def test_a_list_of_tensors_is_carried_however_long_it_is(length: int) -> None:
    norms = [torch.tensor(float(number)) for number in range(length)]
    resumed = after({"norms": []}, lambda _: None, {"norms": norms})
    assert resumed.norms == norms


def test_what_a_checkpoint_has_no_word_for_begins_anew_and_the_rest_is_carried() -> None:
    resumed = after({"wide": None, "count": 0}, lambda _: None, {"wide": np.longdouble(1), "count": 3})
    assert (resumed.wide, resumed.count) == (None, 3)


def test_numbers_that_are_none_are_like_themselves_and_their_order_counts() -> None:
    notes: Any = Notes()
    notes.history = np.full(10_000, np.nan)
    notes.loss = float("nan")
    notes.order = np.arange(10_000)
    own = holding(notes)
    own.begin_step()
    own.shares(3, "the code for a batch")()
    check = own.shares(4, "the code for a batch")
    notes.order[[0, 1]] = [1, 0]
    with pytest.raises(StepError, match=r"changed Notes0\.order in step 4"):
        check()

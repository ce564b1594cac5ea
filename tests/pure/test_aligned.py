"""Where a batch's memory begins decides in which order kernels sum: it must not hang on who has read the batch."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from elastic.data.aligned import aligned

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Thing:
    x: Any


class Encoding(UserDict[str, Any]):
    """As a tokenizer's: with more than it shows."""

    def __init__(self, data: dict[str, Any], more: str) -> None:
        super().__init__(data)
        self.more = more


def apart(*shape: int, by: int = 1) -> torch.Tensor:
    """Of numbers that begin `by` numbers behind a boundary of 64 bytes."""
    numbers = int(np.prod(shape))
    return torch.arange(numbers + by + 16, dtype=torch.float32)[by : by + numbers].view(shape)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, dict | UserDict):
        value = list(value.values())
    return [one for item in (value if isinstance(value, list | tuple) else [value.x]) for one in tensors(item)]


@pytest.mark.parametrize(
    "batch",
    [
        apart(3, 5),
        (apart(3), apart(4)),
        [apart(3), (apart(2),)],
        {"x": apart(3), "y": [apart(2)]},
        OrderedDict(x=apart(3)),
        Pair(apart(3), apart(2)),
        Thing(apart(3)),
        [Thing({"deep": [apart(3)]})],
        Encoding({"x": apart(3)}, "more"),
        torch.max(apart(3, 4), dim=1),
        pack_sequence([apart(3), apart(2)])._replace(data=apart(5)),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_tensor_that_lies_apart_is_moved_in_whatever_holds_it(batch: Any) -> None:
    before = [one.clone() for one in tensors(batch)]
    moved = aligned(batch)
    assert type(moved) is type(batch)
    assert [one.data_ptr() % 64 for one in tensors(moved)] == [0] * len(before)
    assert all(map(torch.equal, tensors(moved), before))
    assert all(map(torch.equal, tensors(batch), before))  # the script may hold it, too
    if isinstance(batch, Encoding):
        assert moved.more == "more"


def test_what_begins_where_torch_s_memory_does_is_given_as_it_is() -> None:
    held: dict[str, Any] = {"x": torch.ones(3), "thing": Thing([torch.ones(2)]), "names": ["a", "b"], "none": None}
    assert aligned(held) is held
    assert aligned(empty := torch.empty(0)) is empty
    assert aligned(sparse := torch.eye(3).to_sparse()) is sparse
    assert aligned(meta := apart(3).to("meta")) is meta


@pytest.mark.parametrize(
    "view",
    [
        apart(4, 6).t(),
        apart(4, 6)[:, 1:3],
        apart(3, by=3).expand(5, 3),
        apart(40)[::7],
        apart(6, 0),
        apart(1).view(()),
    ],
    ids=["turned", "rows with gaps", "one row for all", "every seventh", "nothing", "a number"],
)
def test_strides_stay_for_kernels_look_at_them_too(view: torch.Tensor) -> None:
    moved = aligned(view)
    assert moved.data_ptr() % 64 == 0
    assert moved.stride() == view.stride()
    assert torch.equal(moved, view)


def test_a_tensor_that_wants_a_gradient_gets_it() -> None:
    given = apart(3).requires_grad_()
    moved = aligned(given)
    moved.sum().backward()
    assert moved.is_leaf
    assert moved.grad is not None

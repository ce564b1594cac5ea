"""States that mean the same are the same in this form, however they have travelled; others are not."""

from __future__ import annotations

import collections
import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from elastic.state.normal_form import is_readable, normal_form


def form(value: Any) -> tuple[str, list[list[float]]]:
    held: list[torch.Tensor] = []
    found = json.dumps(normal_form(value, held.append))
    return found, [tensor.reshape(-1).tolist() for tensor in held]


X = torch.arange(6.0).view(2, 3)
ALIKE: list[tuple[Any, Any]] = [
    (1, 1.0),
    (True, 1),
    (2.5, np.float64(2.5)),
    (3, np.int64(3)),
    (0.5, torch.tensor(0.5)),
    (float("nan"), float("nan")),
    ((1, 2), [1, 2]),
    (torch.Size([2, 3]), (2, 3)),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, collections.OrderedDict(a=1)),
    ({0: 1}, {"0": 1}),
    ({"a": X, "b": X}, {"a": X.clone(), "b": X.clone()}),
    (X, X.t().contiguous().t()),
    (X, torch.nn.Parameter(X)),
    (np.arange(3), np.arange(6)[::2] // 2),
    ({"a": {"b": [None, "c"]}}, {"a": {"b": (None, "c")}}),
]
APART: list[tuple[Any, Any]] = [
    (1, 2),
    (1, "1"),
    (None, 0),
    (0.0, -0.0),
    (2**60, 2**60 + 1),
    ((1, 2), (2, 1)),
    ({"a": 1}, {"b": 1}),
    (X, X.view(3, 2)),
    (X, X + 1),
    (X, X.double()),
    (X, X.numpy()),
    (np.arange(3), np.arange(3) + 1),
    (np.arange(3), np.arange(3.0)),
    (b"a", b"b"),
    ([X, X + 1], [X + 1, X]),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_means_the_same_is_the_same(one: Any, other: Any) -> None:
    assert form(one) == form(other)


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_means_something_else_is_not(one: Any, other: Any) -> None:
    assert form(one) != form(other)


def test_whatever_a_state_holds_is_taken() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for odd in (endless, {1, 2}, object(), np.array([object()]), torch.zeros(2, 2).to_sparse(), 1j, 10**400):
        assert form(odd) == form(odd)


def test_memory_that_is_not_there_is_not_readable() -> None:
    for readable in (X, X.t(), X[0:0], torch.zeros(1).expand(4), X[1]):
        assert is_readable(readable)
    freed = X.clone()
    freed.untyped_storage().resize_(0)
    meta, sparse = torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        nested = torch.nested.nested_tensor([X, X])
    for other in (freed, nested, meta, sparse, 3, None):
        assert not is_readable(other)

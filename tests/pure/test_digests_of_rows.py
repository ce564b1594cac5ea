"""Which example of a batch differs, and in which field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from elastic.data.example_digest import digests_of_rows


def batch(kind: str, third: float) -> Any:
    x, names = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, third]]), ["a", "b", "c"]
    return {
        "one tensor": x,
        "a tuple": (x, torch.arange(3)),
        "a mapping": {"x": x, "more": [x.numpy(), names]},
        "a list of examples": [{"x": row} for row in x],
        "two examples in two fields": (x[1:], torch.arange(2)),
        "no rows": (torch.tensor(third), "all"),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "examples", "field", "row"),
    [
        ("one tensor", 3, "", 2),
        ("a tuple", 3, "[0]", 2),
        ("a mapping", 3, "['x']", 2),
        ("a mapping", 3, "['more'][0]", 2),
        ("a list of examples", 3, "", 2),
        ("two examples in two fields", 2, "[0]", 1),
        ("no rows", 3, "[0]", 0),
    ],
)
def test_the_field_and_the_row_that_differ(kind: str, examples: int, field: str, row: int) -> None:
    here, there = (digests_of_rows(batch(kind, third), examples) for third in (6.0, 7.0))
    assert here.keys() == there.keys()
    differing = [(name, at) for name in here for at in range(len(here[name])) if here[name][at] != there[name][at]]
    assert (field, row) in differing
    assert {at for _, at in differing} == {row}


def test_what_is_of_all_is_one() -> None:
    assert {name: len(one) for name, one in digests_of_rows((np.zeros((4, 2)), 1.0, "x"), 4).items()} == {
        "[0]": 4,
        "[1]": 1,
        "[2]": 1,
    }

"""Which ranks help with the save of all that leave: one of each node but the coordinator's."""

from __future__ import annotations

import pytest

from elastic.loop.leaving.shared_save import HELPERS_MAX, helpers_of


@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [
        ([], []),
        (["a"], []),
        (["a", "a", "a"], []),
        (["a", "b"], [1]),
        (["a", "a", "b", "b", "c"], [2, 4]),
        (["b", "a", "b", "c", "a"], [1, 3]),
    ],
)
def test_one_of_each_other_node(nodes: list[str], ranks: list[int]) -> None:
    assert helpers_of(nodes) == ranks


def test_of_many_nodes_some_do() -> None:
    assert helpers_of([f"node-{number}" for number in range(1000)]) == [*range(1, HELPERS_MAX + 1)]

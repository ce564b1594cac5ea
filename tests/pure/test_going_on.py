"""What a hub knows of those who might go on elsewhere: whether the storage is a witness."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.membership.going_on import GoingOn

OURS = {"claim": 1, "nonce": "of the agent", "taken_at": 5.0, "world": {"nodes": ["A"]}}


@pytest.mark.parametrize(
    ("read", "is_witness"),
    [
        pytest.param(OURS, True, id="the run's claim"),
        pytest.param({**OURS, "nonce": "of another"}, False, id="another job's of that number"),
        pytest.param({**OURS, "taken_at": 4.0}, False, id="one of a folder of its own, by the same agent's beacon"),
        pytest.param({**OURS, "taken_at": ["x"]}, False, id="what is no claim"),
    ],
)
def test_a_node_sees_the_storage_if_it_has_read_the_run_s_very_claim(read: dict[str, Any], is_witness: bool) -> None:
    """Each folder counts its claims from 1, and a beacon gives all claims of its agent's life one nonce."""
    going_on = GoingOn()
    going_on.learn(OURS)
    going_on.is_here("A", OURS)
    going_on.is_here("B", read)
    assert going_on.publishes(2, ["A", "B"]) == is_witness

"""What a hub knows of those who might go on elsewhere: whether the storage is a witness."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.membership.succession.going_on import GoingOn
from elastic.membership.succession.succession import NeedsClaim, Stay

OURS = {"claim": 1, "nonce": "of the agent", "taken_at": 5.0, "world": {"nodes": ["A"]}}


@pytest.mark.parametrize(
    ("read", "is_witness"),
    [
        pytest.param(OURS, True, id="the run's claim"),
        pytest.param({**OURS, "nonce": "of another"}, False, id="another job's of that number"),
        pytest.param(
            {**OURS, "taken_at": 4.0}, False, id="one of a folder of its own, by the same agent's liveness endpoint"
        ),
        pytest.param({**OURS, "taken_at": ["x"]}, False, id="what is no claim"),
    ],
)
def test_a_node_sees_the_storage_if_it_has_read_the_run_s_very_claim(read: dict[str, Any], is_witness: bool) -> None:
    """Each folder counts its claims from 1, and a liveness endpoint gives all claims of its agent's life one nonce."""
    going_on = _of_a_run_whose_storage_is_its_witness()
    going_on.is_here("A", OURS)
    going_on.is_here("B", read)
    assert going_on.publishes(2, ["A", "B"]) == is_witness


def test_two_that_have_read_two_claims_of_the_run_may_have_done_so_in_two_folders() -> None:
    """Where no storage is the witness, a majority takes claims wherever it can; then both sides of a cut went on."""
    going_on = GoingOn()
    going_on.publishes(1, ["A", "B"])
    going_on.witness(OURS, agreed=False)
    going_on.is_here("A", OURS)
    later = {**OURS, "claim": 2, "taken_at": 9.0}
    going_on.learn(later)
    going_on.is_here("B", later)
    assert not going_on.publishes(2, ["A", "B"])


@pytest.mark.parametrize(
    ("read", "found"),
    [
        pytest.param(OURS, NeedsClaim, id="it has read the run's claim"),
        pytest.param(None, Stay, id="the storage failed as it came"),
    ],
)
def test_of_a_view_with_a_node_that_could_not_read_the_storage_only_a_majority_goes_on(
    read: dict[str, Any] | None, found: type
) -> None:
    """That node may have a folder of its own instead, and a claim there keeps nobody from going on elsewhere."""
    going_on = _of_a_run_whose_storage_is_its_witness()
    for node in "ABC":
        going_on.is_here(node, OURS)
    going_on.is_here("D", read)
    going_on.publishes(2, list("ABCD"))
    going_on.is_away("C")
    going_on.is_away("D")
    assert isinstance(_after_a_while(going_on, "AB"), found)
    assert not isinstance(_after_a_while(going_on, "ABC"), Stay)


def test_one_alone_that_finds_the_claim_there_proves_nothing_of_those_who_come() -> None:
    """It took that claim where no storage is the witness, in a folder of its own; and those who had another one, in
    which the run had begun, went on from there."""
    going_on = GoingOn()
    going_on.learn(OURS)
    going_on.is_here("A", OURS)
    assert not going_on.publishes(2, ["A"])


def _of_a_run_whose_storage_is_its_witness() -> GoingOn:
    """A has begun it."""
    going_on = GoingOn()
    going_on.publishes(1, ["A"])
    going_on.witness(OURS, agreed=True)
    return going_on


def _after_a_while(going_on: GoingOn, here: str) -> object:
    going_on.verdict(0.0, here, holding=here, signs=True)
    return going_on.verdict(9.0, here, holding=here, signs=True)

"""The order that decides which checkpoint a run continues from, as a pure function."""

from __future__ import annotations

import random

import pytest

from checkpoint.history import History
from checkpoint.lineage import lineage
from checkpoint.names import CommitId, claim_number, commit_id, data_owner, id_document, id_from, parse_name
from checkpoint.retention import removable


def commit(claim: int, step: int, time: int = 0) -> CommitId:
    return CommitId(claim, step, f"{time:020x}")


def order(resumed: dict[int, CommitId | None], commits: list[CommitId]) -> list[tuple[int, int]]:
    random.Random(5).shuffle(commits)
    return [(id.claim, id.step) for id in lineage(max(resumed, default=None), commits, resumed.get)]


def test_no_claim_means_no_checkpoint() -> None:
    assert order({}, []) == []


def test_within_a_claim_the_later_step_is_newer() -> None:
    assert order({1: None}, [commit(1, step) for step in (5, 20, 100)]) == [(1, 100), (1, 20), (1, 5)]


def test_the_newest_claim_comes_first_even_at_an_earlier_step() -> None:
    """It resumed from an older checkpoint, because the newest was damaged: its work is the run's."""
    resumed = {1: None, 2: commit(1, 20)}
    assert order(resumed, [commit(1, 10), commit(1, 20), commit(2, 11)]) == [(2, 11), (1, 20), (1, 10)]


def test_what_an_older_claim_made_after_it_was_replaced_is_never_chosen() -> None:
    resumed = {1: None, 2: commit(1, 10), 3: commit(2, 15)}
    commits = [commit(1, 10), commit(1, 99), commit(2, 15), commit(2, 98), commit(3, 16)]
    assert order(resumed, commits) == [(3, 16), (2, 15), (1, 10)]


def test_a_claim_that_made_no_commit_still_shuts_out_its_predecessor() -> None:
    assert order({1: None, 2: commit(1, 10)}, [commit(1, 10), commit(1, 11)]) == [(1, 10)]


def test_a_later_save_of_the_very_step_that_was_resumed_from_is_outside() -> None:
    commits = [commit(1, 10, time=1), commit(1, 10, time=2)]
    chosen = lineage(2, commits, lambda claim: commit(1, 10, time=1) if claim == 2 else None)
    assert chosen == [commits[0]]


def test_claims_in_between_that_led_nowhere_are_passed_over() -> None:
    resumed = {1: None, 2: commit(1, 10), 3: commit(1, 10), 7: commit(1, 12)}
    assert order(resumed, [commit(1, 10), commit(1, 12), commit(2, 50)]) == [(1, 12), (1, 10)]


def test_a_run_that_began_anew_does_not_reach_below() -> None:
    assert order({1: None, 2: None}, [commit(1, 10), commit(2, 0)]) == [(2, 0)]


def test_a_swept_commit_does_not_end_the_lineage_below_it() -> None:
    resumed = {1: None, 2: commit(1, 10)}
    assert order(resumed, [commit(1, 5), commit(2, 12)]) == [(2, 12), (1, 5)]


def test_a_claim_that_decided_nothing_hides_nothing() -> None:
    """The newcomer named step 10, the old holder went on and swept it, the newcomer died before it committed."""
    resumed = {1: None, 2: commit(1, 10)}
    assert order(resumed, [commit(1, 11), commit(1, 12)]) == [(1, 12), (1, 11)]


def test_retention_keeps_the_newest_whole_ones_and_waits_before_it_touches_the_unknown() -> None:
    inside = [commit(2, step, time=0x1000000000000000) for step in (9, 8, 7, 6, 5)]
    zombie, orphan, young = commit(1, 99), commit(1, 3), CommitId(2, 10, "f" * 20)
    history = History(2, 2, tuple(inside), (zombie,))

    def remove(keep: int, broken: set[int], now_s: float) -> list[int]:
        owners = [*inside, zombie, orphan, young]
        whole = removable(
            history, whole=lambda id: id.step not in broken, owners=owners, keep=keep, grace_s=10, now_s=now_s
        )
        return [id.step for id in whole]

    assert remove(3, set(), 5) == [5, 6]
    assert remove(0, set(), 5) == [5, 6, 7]  # never fewer than two
    assert remove(3, {9, 7}, 5) == []  # damaged ones do not count
    assert remove(2, {9, 7}, 5) == [5]
    assert remove(9, set(), 10) == [99, 3]


def test_names_are_keys_and_back() -> None:
    id = CommitId(7, 1200, "0123456789ab01234567")
    assert str(id) == "c00000007.s000001200-0123456789ab01234567"
    assert (
        commit_id(id.manifest_key)
        == parse_name(str(id))
        == data_owner(id.shard_key(3))
        == id_from(id_document(id))
        == id
    )
    assert id.shard_key(3) == "data/c00000007/s000001200-0123456789ab01234567/00003.safetensors"
    assert claim_number("claims/00000007.json") == 7
    assert claim_number("claims/probe-1") is None
    assert commit_id("commits/x") is None
    assert data_owner("data/x") is None
    big = CommitId(123456789012, 1234567890123, "0123456789ab01234567")
    assert parse_name(str(big)) == big


@pytest.mark.parametrize(
    "bad", [3, "x", {}, {"claim": 1, "step": -1, "nonce": "0" * 20}, {"claim": 1, "step": 1, "nonce": "../.."}]
)
def test_what_names_no_commit_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="names no commit"):
        id_from(bad)

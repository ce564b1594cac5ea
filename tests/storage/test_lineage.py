"""The order that decides which checkpoint a run continues from, as a pure function."""

from __future__ import annotations

import random

import pytest

from elastic_checkpoint.format.names import (
    CommitId,
    claim_number,
    commit_id,
    data_owner,
    id_document,
    id_from,
    parse_name,
)
from elastic_checkpoint.runs.history import History
from elastic_checkpoint.runs.lineage import lineage
from elastic_checkpoint.runs.retention import removable


def commit(claim: int, step: int, time: int = 0) -> CommitId:
    return CommitId(claim, step, f"{time:020x}")


def order(resumed: dict[int, CommitId | None], commits: list[CommitId]) -> list[tuple[int, int]]:
    random.Random(5).shuffle(commits)
    top = max((id.claim for id in commits), default=None)
    return [(id.claim, id.step) for id in lineage(top, commits, resumed.get)]


def test_the_newest_claim_comes_first_even_at_an_earlier_step() -> None:
    """It resumed from an older checkpoint, because the newest was damaged: its work is the run's."""
    resumed = {1: None, 2: commit(1, 20)}
    assert order(resumed, [commit(1, 10), commit(1, 20), commit(2, 11)]) == [(2, 11), (1, 20), (1, 10)]


def test_what_an_older_claim_made_after_it_was_replaced_is_never_chosen() -> None:
    resumed = {1: None, 2: commit(1, 10), 3: commit(2, 15)}
    commits = [commit(1, 10), commit(1, 99), commit(2, 15), commit(2, 98), commit(3, 16)]
    assert order(resumed, commits) == [(3, 16), (2, 15), (1, 10)]


def test_a_claim_counts_from_its_first_commit_on() -> None:
    """Until then its holder may die or give up, and nothing that the one before it reported may be lost to that. It
    sees by itself what it goes on from."""
    resumed: dict[int, CommitId | None] = {1: None, 2: commit(1, 10)}
    commits = [commit(1, 10), commit(1, 11)]
    assert order(resumed, commits) == [(1, 11), (1, 10)]
    assert order(resumed, [*commits, commit(2, 11)]) == [(2, 11), (1, 10)]
    assert [(id.claim, id.step) for id in lineage(2, commits, resumed.get)] == [(1, 10)]


def test_a_later_save_of_the_very_step_that_was_resumed_from_is_outside() -> None:
    commits = [commit(1, 10, time=1), commit(1, 10, time=2)]
    chosen = lineage(2, commits, lambda claim: commit(1, 10, time=1) if claim == 2 else None)
    assert chosen == [commits[0]]


def test_claims_in_between_that_led_nowhere_are_passed_over() -> None:
    resumed = {1: None, 2: commit(1, 10), 3: commit(1, 10), 7: commit(1, 12)}
    commits = [commit(1, 10), commit(1, 12), commit(2, 50), commit(7, 13)]
    assert order(resumed, commits) == [(7, 13), (1, 12), (1, 10)]


def test_a_run_that_began_anew_does_not_reach_below() -> None:
    assert order({1: None, 2: None}, [commit(1, 10), commit(2, 0)]) == [(2, 0)]


def test_a_swept_commit_does_not_end_the_lineage_below_it() -> None:
    resumed = {1: None, 2: commit(1, 10)}
    assert order(resumed, [commit(1, 5), commit(2, 12)]) == [(2, 12), (1, 5)]


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


def test_what_is_unfit_never_pushes_out_what_is_fit_and_does_not_pile_up() -> None:
    """A run whose weights became NaN goes on saving: the state from before must still be there in the end."""
    lineage = tuple(commit(1, step) for step in (9, 8, 7, 6, 5, 4, 3, 2))

    def stays(unfit: set[int], broken: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
        gone = removable(
            History(1, 1, lineage, ()), whole=lambda id: id.step not in broken, unfit=lambda id: id.step in unfit,
            owners=lineage, keep=2, grace_s=0, now_s=0,
        )  # fmt: skip
        return [id.step for id in lineage if id not in gone]

    assert stays({9, 8, 7, 6}) == [9, 8, 5, 4]
    assert stays({9}) == [9, 8, 7]
    assert stays({9, 7}, broken={8, 6}) == [9, 8, 7, 6, 5, 4]
    assert stays({id.step for id in lineage}) == [9, 8]


def kept(steps: list[int], *, every: int, keep: int = 2, broken: tuple[int, ...] = ()) -> tuple[list[int], list[int]]:
    """The steps that stay, and those of which it was asked whether they are whole."""
    lineage = tuple(commit(1, step) for step in sorted(steps, reverse=True))
    asked: list[int] = []

    def whole(id: CommitId) -> bool:
        asked.append(id.step)
        return id.step not in broken

    history = History(1, 1, lineage, ())
    gone = removable(history, whole=whole, owners=lineage, keep=keep, keep_every=every, grace_s=0, now_s=0)
    return [id.step for id in lineage[::-1] if id not in gone], asked


def test_every_so_many_steps_one_stays_for_good() -> None:
    assert kept(list(range(0, 1200, 50)), every=300)[0] == [0, 300, 600, 900, 1100, 1150]
    assert kept([350, 720, 1080, 1400, 1750, 2100, 2450], every=1000)[0] == [350, 1080, 2100, 2450]  # by the clock
    assert kept([5, 2999, 3001, 9000, 9001, 9002], every=3000)[0] == [5, 3001, 9000, 9001, 9002]  # none is invented
    assert kept([7], every=1)[0] == [7]


def test_the_newest_of_a_multiple_stays_however_many_follow_it() -> None:
    """Saves of workers that leave must not sweep away what a rollback goes back to."""
    lineage = tuple(commit(1, step) for step in (23, 22, 21, 20, 15, 10, 8))

    def stays(broken: tuple[int, ...] = (), multiple: int = 10) -> list[int]:
        gone = removable(
            History(1, 1, lineage, ()), whole=lambda id: id.step not in broken, owners=lineage, keep=2,
            keep_multiple=multiple, grace_s=0, now_s=0,
        )  # fmt: skip
        return [id.step for id in lineage if id not in gone]

    assert stays() == [23, 22, 20]
    assert stays(broken=(20,)) == [23, 22, 10]
    assert stays(multiple=11) == [23, 22]
    assert stays(broken=(22,), multiple=2) == [23, 22, 21, 20]
    assert stays(multiple=7) == [23, 22, 21]


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

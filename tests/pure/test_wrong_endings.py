"""Workers that were found wrong: who is replaced, which place is given up, and when it is the script."""

from __future__ import annotations

from elastic.errors import ComputesWrongly
from elastic.membership.rules.endings import WRONG, Bug, Ended, Endings
from elastic.membership.rules.kills import Replace, Slot


def wrong(slot: Slot, number: int) -> Ended:
    return Ended(worker=f"{slot} {number}", slot=slot, what=f"{WRONG}: rank {number} is wrong", step=7)


def test_it_is_known_by_its_error() -> None:
    assert f"{ComputesWrongly.__module__}.{ComputesWrongly.__qualname__}" == WRONG


def test_one_place_again_and_again_is_given_up_and_not_the_run() -> None:
    endings = Endings(restarts_max=3, window_s=100)
    follows = [endings.follows(number, wrong(("A", 1), number)) for number in range(4)]
    assert follows[:3] == [Replace(0.0)] * 3
    bug = follows[3]
    assert isinstance(bug, Bug)
    assert (bug.why, bug.of_place) == ("wrong 4 times in this place", True)
    assert endings.follows(5, wrong(("A", 0), 0)) == Replace(0.0)


def test_many_places_are_a_script() -> None:
    endings = Endings(restarts_max=3, window_s=100)
    follows = [endings.follows(number, wrong(("A", number), number)) for number in range(4)]
    assert follows[:3] == [Replace(0.0)] * 3
    assert isinstance(follows[3], Bug)
    assert not follows[3].of_place


def test_a_machine_that_errs_once_a_day_is_replaced_each_time() -> None:
    endings = Endings(restarts_max=3, window_s=100)
    assert [endings.follows(number * 101, wrong(("A", 1), number)) for number in range(9)] == [Replace(0.0)] * 9

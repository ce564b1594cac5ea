"""Processes of one test session make each undisturbed run once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from elastic.drill.drilled_tests import UndisturbedEnds
from elastic.drill.end import End
from tests.pure.test_judge import undisturbed, verdict_on

EVENTS = undisturbed().events
END = End(0, "output", EVENTS, verdict_on(EVENTS), (), ())


def never() -> End:
    raise AssertionError("it was made again")


def test_another_process_of_the_session_takes_what_one_has_made(tmp_path: Path) -> None:
    assert UndisturbedEnds(tmp_path).get("steps=3", lambda: END) is END
    assert UndisturbedEnds(tmp_path).get("steps=3", never) == END
    with pytest.raises(AssertionError, match="made again"):
        UndisturbedEnds(tmp_path).get("steps=4", never)


def test_who_makes_it_is_waited_for(tmp_path: Path) -> None:
    begun, may_end, found = threading.Event(), threading.Event(), []

    def slow() -> End:
        begun.set()
        assert may_end.wait(60)
        return END

    first = threading.Thread(target=lambda: UndisturbedEnds(tmp_path).get("a", slow))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=lambda: found.append(UndisturbedEnds(tmp_path).get("a", never)))
    second.start()
    may_end.set()
    first.join(60)
    second.join(60)
    assert found == [END]

"""Until when does a worker that was told to leave wait for a boundary?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic.loop.leave_deadline import RECORD_S, gives_up_s

TOLD_S = 1000.0


def test_what_is_lost_is_said_two_seconds_ahead() -> None:
    assert gives_up_s(TOLD_S, TOLD_S + 120) == TOLD_S + 120 - RECORD_S


@given(left_s=st.floats(0.0, 600.0))
def test_half_of_any_notice_is_for_the_boundary_and_something_is_left_for_the_record(left_s: float) -> None:
    by_s = TOLD_S + left_s
    assert TOLD_S + left_s / 2 <= gives_up_s(TOLD_S, by_s) <= by_s
    assert by_s - gives_up_s(TOLD_S, by_s) >= min(RECORD_S, left_s / 4) - 1e-6

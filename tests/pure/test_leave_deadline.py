"""Until when does a worker that was told to leave wait for a boundary?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.loop.leaving.deadline import RECORD_S, gives_up_s

TOLD_S = 1000.0


@pytest.mark.parametrize(("left_s", "ahead_s"), [(120.0, RECORD_S), (8.0, RECORD_S), (4.0, 1.0), (0.0, 0.0)])
def test_what_is_lost_is_said_two_seconds_ahead_or_a_quarter_of_a_short_notice(left_s: float, ahead_s: float) -> None:
    assert gives_up_s(TOLD_S, TOLD_S + left_s) == TOLD_S + left_s - ahead_s


@given(left_s=st.floats(0.0, 600.0))
def test_three_quarters_of_any_notice_are_for_the_boundary_and_the_rest_is_for_the_record(left_s: float) -> None:
    by_s = TOLD_S + left_s
    assert TOLD_S + left_s * 0.75 - 1e-6 <= gives_up_s(TOLD_S, by_s) <= by_s
    assert by_s - gives_up_s(TOLD_S, by_s) == pytest.approx(min(RECORD_S, left_s / 4), abs=1e-6)

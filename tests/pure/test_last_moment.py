"""When does a worker that was told to leave break off its step, and when is it given up?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import elastic
from elastic.loop.breaking_off import in_script
from elastic.preemption.last_moment import RECORD_S, LastMoment

TOLD_S = 1000.0


def test_a_save_has_twice_its_time_before_the_loss_would_be_said() -> None:
    last = LastMoment(told_s=TOLD_S, by_s=TOLD_S + 120)
    assert last.gives_up_s == TOLD_S + 120 - RECORD_S
    assert last.breaks_off_s(20.0) == last.gives_up_s - 40.0
    assert last.breaks_off_s(0.1) > last.breaks_off_s(None) > last.breaks_off_s(20.0)


@given(left_s=st.floats(0.0, 600.0), save_s=st.none() | st.floats(0.0, 900.0))
def test_half_of_any_notice_is_for_the_boundary_and_something_is_left_for_the_record(
    left_s: float, save_s: float | None
) -> None:
    last = LastMoment(told_s=TOLD_S, by_s=TOLD_S + left_s)
    assert TOLD_S + left_s / 2 <= last.breaks_off_s(save_s) <= last.gives_up_s <= last.by_s
    assert last.by_s - last.gives_up_s >= min(RECORD_S, left_s / 4) - 1e-6


ELASTIC = Path(elastic.__file__).parent
SCRIPT, TORCH, RUNPY = "/home/me/train.py", "/usr/lib/torch/nn/modules/linear.py", "<frozen runpy>"
AGENTS, TRAINERS = str(ELASTIC / "launch" / "worker.py"), str(ELASTIC / "integrations" / "lightning.py")
STEPS, SUMS = str(ELASTIC / "loop" / "step.py"), str(ELASTIC / "group" / "gradients.py")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([SCRIPT], True),
        ([SCRIPT, TORCH], True),
        ([AGENTS, RUNPY, SCRIPT, TORCH], True),
        ([AGENTS, RUNPY, SCRIPT, TRAINERS, SCRIPT, TORCH], True),
        ([AGENTS, RUNPY, SCRIPT, TRAINERS], False),
        ([AGENTS, RUNPY, SCRIPT, STEPS], False),
        ([SCRIPT, STEPS, TORCH], False),
        ([SCRIPT, TORCH, SUMS], False),
        ([AGENTS], False),
    ],
)
def test_a_step_is_broken_off_in_the_scripts_code_and_never_in_ours(files: list[str], expected: bool) -> None:
    """From the outermost to the one that runs: a buffer that is half copied would be saved as it is."""
    found: list[bool] = []

    def innermost() -> None:
        found.append(in_script(sys._getframe(1)))

    call = innermost
    for file in reversed(files):
        scope = {"call": call}
        exec(compile("def made():\n    call()", file, "exec"), scope)
        call = scope["made"]
    call()
    assert found == [expected]

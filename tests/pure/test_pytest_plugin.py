"""Faults that a test draws are those that one launch survives."""

from __future__ import annotations

import pytest

from elastic.drill.pytest_plugin import _drawn


@pytest.mark.parametrize("kind", ["join", "lose-all", "flip-bytes", "disk-full", "kill-agent"])
def test_a_fault_that_takes_more_than_one_launch_is_refused_before_anything_runs(kind: str) -> None:
    """It would end in a verdict on a run that nobody started again, or in a deadline."""
    with pytest.raises(pytest.UsageError, match=f"{kind}: for `elastic drill` only"):
        _drawn(1, f"kill,{kind}", 0.1, {"steps": 20, "workers": 4})
    with pytest.raises(pytest.UsageError, match="kinds of kill, stop, leave") as refused:
        _drawn(1, "kil", 0.1, {"steps": 20})
    assert "only" not in str(refused.value)


def test_a_drawn_plan_brings_what_it_needs_to_be_survived() -> None:
    """Restarts for all that may strike one place, and a smaller number of nodes; what the test asks for stays."""
    arguments = {"steps": 100, "workers": 4, "nodes": 2}
    plan = _drawn(1, "kill,leave-node", 0.1, arguments)
    assert len(plan.faults) == 10
    assert arguments == {"steps": 100, "workers": 4, "nodes": 2, "restarts": 11, "nodes_max": 3}
    asked = {"steps": 100, "restarts": 2}
    _drawn(1, "kill", 0.1, asked)
    assert asked == {"steps": 100, "restarts": 2}

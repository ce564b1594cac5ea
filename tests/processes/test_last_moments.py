"""A node that is told to leave by a time, and comes to no boundary before: its loss is said, and others go on.

When is in tests/pure/test_leave_deadline.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic.report.report import report
from tests.kit.observed import assert_observed
from tests.kit.told_nodes import ToldNode, ToldNodes

pytestmark = pytest.mark.nightly(sample=2, of="machines that go before a boundary")

LEFT_S = 12
SOON = f"leave {LEFT_S} the price went up"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ToldNodes]:
    with ExitStack() as stack:
        run = ToldNodes(tmp_path, stack)
        yield run
        assert_observed(run.events)


def held_at(nodes: ToldNodes, moment: str) -> ToldNode:
    """A node that trains, and then comes to that."""
    node = nodes.start()
    node.wait_for_steps(1)
    node.is_to_hold(moment)
    node.wait_until_held()
    return node


@pytest.mark.parametrize(
    ("moment", "at"),
    [("body", "in a step"), ("section", "between two steps"), ("evaluating", "in an evaluation")],
)
def test_what_is_lost_is_on_record_before_the_machine_is_gone(nodes: ToldNodes, moment: str, at: str) -> None:
    """The script's own code has run half there: a resume would run it twice, or leave out the rest of it."""
    node = held_at(nodes, moment)
    saved = nodes.of("saved")[-1]["step"]
    node.says(SOON)
    node.departs()
    (cut,) = nodes.of("cut_short")
    applied = max(event["step"] for event in nodes.of("step_applied")) + 1
    assert (cut["step"], cut["at"]) == (applied, at)
    assert cut["why"].endswith("says leave: the price went up")
    assert 0 < cut["left_s"] <= LEFT_S / 2
    assert f"leaves with {applied} steps applied, {at}: its machine is about to go" in node.launch.output
    assert nodes.of("saved")[-1]["step"] == saved
    assert report(nodes.events).cut_short == (f"{at}, {applied} steps applied: {cut['why']}",)


@pytest.mark.parametrize(("moment", "redone"), [("body", 1), ("evaluating", 0)])
def test_others_go_on_at_once_without_it(nodes: ToldNodes, moment: str, redone: int) -> None:
    stays = nodes.start()
    stays.wait_for_steps(1)
    goes = nodes.start()
    goes.wait_for_steps(2)
    goes.is_to_hold(moment)
    goes.wait_until_held()
    goes.says(SOON)
    goes.departs()
    stays.wait_for_steps(1)
    nodes.stays = stays
    nodes.finish()
    (cut,) = nodes.of("cut_short")
    (cause,) = [event["cause"] for event in nodes.of("fault_detected") if event["lost"] == cut["worker"]]
    assert cause == "told to leave, it came to no boundary before its machine was to go"
    assert [event["step"] for event in nodes.of("redo")] == [cut["step"]] * redone
    assert len(nodes.of("finished")) == 1

"""A node that is told to leave by a time, and comes to no boundary before: what it holds is saved, or its loss is said.

When is in tests/pure/test_last_moment.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from checkpoint import Checkpointer
from elastic.events.reading import read_events
from elastic.report.report import report
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed
from tests.kit.told_at import AT, FOLDER, HOLDS
from tests.kit.told_nodes import PROGRAM, WITHIN_S, ToldNode, ToldNodes

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


@pytest.mark.nightly(sample=3, of="machines that go before a boundary")
def test_the_step_of_a_run_that_leaves_is_broken_off_and_what_came_before_it_is_saved(nodes: ToldNodes) -> None:
    """It was lost: nothing was saved until the step had ended, and the machine was gone by then."""
    node = held_at(nodes, "body")
    node.says(SOON)
    node.has_left()
    (left,) = nodes.of("left")
    assert left["step"] == max(event["step"] for event in nodes.of("step_applied")) + 1
    assert nodes.of("saved")[-1]["step"] == left["step"]
    assert not nodes.of("cut_short")
    nodes.finish()
    assert not nodes.of("redo")
    assert report(nodes.events).state == "finished"


@pytest.mark.nightly(sample=3, of="machines that go before a boundary")
def test_others_redo_the_step_of_one_whose_machine_goes_and_need_not_miss_it(nodes: ToldNodes) -> None:
    stays = nodes.start()
    stays.wait_for_steps(1)
    goes = nodes.start()
    goes.wait_for_steps(2)
    goes.is_to_hold("body")
    goes.wait_until_held()
    goes.says(SOON)
    goes.has_left()
    stays.wait_for_steps(1)
    nodes.stays = stays
    nodes.finish()
    (left,) = nodes.of("left")
    assert [event["step"] for event in nodes.of("redo")] == [left["step"]]
    assert report(nodes.events).redone == 1


@pytest.mark.nightly(sample=3, of="machines that go before a boundary")
@pytest.mark.parametrize("held", [1, 2])
def test_of_two_that_both_go_in_a_step_one_saves(nodes: ToldNodes, held: int) -> None:
    """The coordinator is held in its step. The other one is, too; or it has done its part, waits in the exchange, and
    does the step by itself before it goes."""
    both = [nodes.start()]
    both[0].wait_for_steps(1)
    both.append(nodes.start())
    both[1].wait_for_steps(2)
    for node in both[:held]:
        node.is_to_hold("body")
    for node in both[:held]:
        node.wait_until_held()
    for node in both:
        node.says(SOON)
    for node in both:
        node.has_left()
    applied = max(event["step"] for event in nodes.of("step_applied")) + 1
    assert nodes.of("saved")[-1]["step"] == max(event["step"] for event in nodes.of("left")) == applied
    assert len(nodes.of("left")) == 2
    assert not nodes.of("cut_short")


@pytest.mark.nightly(sample=3, of="machines that go before a boundary")
@pytest.mark.parametrize(("moment", "at"), [("section", "between two steps"), ("evaluating", "in an evaluation")])
def test_what_is_lost_between_two_steps_is_on_record_before_the_machine_is_gone(
    nodes: ToldNodes, moment: str, at: str
) -> None:
    """The script's own code has run half there: a save would leave out the rest of it."""
    node = held_at(nodes, moment)
    saved = nodes.of("saved")[-1]["step"]
    node.says(SOON)
    node.has_left()
    (cut,) = nodes.of("cut_short")
    applied = max(event["step"] for event in nodes.of("step_applied")) + 1
    assert (cut["step"], cut["at"]) == (applied, at)
    assert cut["why"].endswith("says leave: the price went up")
    assert 0 < cut["left_s"] <= LEFT_S / 2
    assert f"leaves with {applied} steps applied, {at}: its machine is about to go" in node.launch.output
    assert nodes.of("saved")[-1]["step"] == saved
    assert report(nodes.events).cut_short == (f"{at}, {applied} steps applied: {cut['why']}",)


@pytest.mark.nightly(sample=3, of="machines that go before a boundary")
def test_others_go_on_at_once_without_one_that_evaluates_until_its_machine_goes(nodes: ToldNodes) -> None:
    stays = nodes.start()
    stays.wait_for_steps(1)
    goes = nodes.start()
    goes.wait_for_steps(2)
    goes.is_to_hold("evaluating")
    goes.wait_until_held()
    goes.says(SOON)
    goes.has_left()
    stays.wait_for_steps(1)
    nodes.stays = stays
    nodes.finish()
    (cut,) = nodes.of("cut_short")
    (cause,) = [event["cause"] for event in nodes.of("fault_detected") if event["lost"] == cut["worker"]]
    assert cause == "told to leave, it came to no boundary before its machine was to go"
    assert not nodes.of("redo")
    assert len(nodes.of("finished")) == 1


@pytest.mark.nightly(sample=3, of="machines that go before a boundary")
@pytest.mark.parametrize("workers", [1, 2])
def test_torchrun_ends_workers_in_a_step_and_what_came_before_it_is_saved(tmp_path: Path, workers: int) -> None:
    """It kills them 30 s after its SIGTERM; so much time, and no more, is theirs. Of two, one waits for the other."""
    folder, url = tmp_path / "told", tmp_path / "run"
    folder.mkdir()
    script = [url, "--pace-s=0.1"]
    env = {FOLDER: str(folder), "ELASTIC_GRACE_S": str(LEFT_S)}
    with Launch(PROGRAM, script, workers=workers, env=env) as torchrun:
        torchrun.wait_for((folder / f"steps-{workers}").exists, "a step", within_s=WITHIN_S)
        (folder / AT).write_text("body")
        torchrun.wait_for((folder / HOLDS).exists, "a worker in its step", within_s=WITHIN_S)
        torchrun.send(signal.SIGTERM)
        torchrun.finish(within_s=WITHIN_S)
        output = torchrun.output
    events = read_events(url)
    applied = max(event["step"] for event in events if event["event"] == "step_applied") + 1
    with Checkpointer(url) as checkpoints:
        newest = checkpoints.latest()
    assert newest is not None
    assert newest.step == applied, output
    assert applied in {event["step"] for event in events if event["event"] == "left"}, output
    assert not [event for event in events if event["event"] == "cut_short"], output

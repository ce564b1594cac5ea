"""A report is read when something went wrong, so it must be right about the unfinished, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.launch.cli import main
from elastic.observe.events import EventLog, read_events
from elastic.observe.report import report
from tests.kit.story import Story


def a_run_that_lost_a_worker(folder: Path, *, finishes: bool) -> None:
    """Steps 0, 1, 2 under claim 1; then, from step 2 under claim 2, steps 2 and 3."""
    clock = iter(range(100))
    for claim, first, last in ((1, 0, 3), (2, 2, 4)):
        log = EventLog(folder, worker_id=f"w{claim}", clock=lambda: next(clock))
        log.context(rank=0, claim=claim)
        log.emit("view_formed", workers=[f"w{claim}", f"x{claim}"], shares=[0, 2])
        log.emit("claimed", resumed_from=None)
        log.emit("loaded", step=first, epoch=0, from_claim=None, digest="d", accepted=["torch"] if claim == 2 else [])
        for step in range(first, last):
            log.emit("step_applied", step=step, epoch=0)
        log.emit("saved", step=last, bytes=10, seconds=0.5, name="c")
        if claim == 1:
            log.emit("peer_lost", step=3, phase="exchange", error="gone", missing=[1])
        elif finishes:
            log.emit("finished", step=4, digest="f00d")
        log.close()


@pytest.mark.parametrize("finishes", [True, False])
def test_a_report_counts_redone_work_and_knows_how_the_run_ended(tmp_path: Path, finishes: bool) -> None:
    """Step 2 was done twice, and step 3 was in flight; what was accepted to differ is said for ever."""
    a_run_that_lost_a_worker(tmp_path, finishes=finishes)

    found = report(read_events(tmp_path))
    assert (found.steps, found.redone, found.claims, found.peers_lost) == (4, 2, 2, 1)
    assert found.world_sizes == (2, 2)
    assert found.accepted == ("torch",)
    assert (found.saves, found.saved_bytes) == (2, 20)
    assert (found.state, found.weights_sha256) == (("finished", "f00d") if finishes else ("unfinished", None))


def test_a_report_counts_views_losses_and_redone_steps_of_a_live_run() -> None:
    """The survivors of two losses are the same workers in views of their own, and a step redone is applied once."""
    story = Story().launch(4).train(2).read().regroup([0, 1, 2]).train(3).regroup([0, 1, 2], newcomers=1).train(4)
    story.read().regroup([0, 1, 2]).train(6).leave(2).regroup([0, 1]).train(8).finish()
    redone = {3: 1, 4: 0, 2: 2}  # step -> attempt; step 4 was applied by one who died, and again
    events = [{**e, "attempt": redone.get(e["step"], 0)} if e["event"] == "step_applied" else e for e in story.events]
    lone = next(e for e in events if e["event"] == "step_applied" and e["step"] == 4)
    events = [*events[:-2], {**lone, "worker": "w4", "generation": 2}, *events[-2:]]

    found = report(events)
    assert found.world_sizes == (4, 3, 4, 3, 2)
    assert (found.peers_lost, found.redone) == (2, 2 + 1 + 1)


def test_the_command_says_what_to_do_where_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "next" in capsys.readouterr().err

"""A report is read when something went wrong, so it must be right about the unfinished, too."""

from __future__ import annotations

import io
import json
import re
from enum import Enum
from pathlib import Path

import pytest
from rich.console import Console

from elastic.__main__ import main
from elastic.events.log import EventLog
from elastic.events.reading import read_events
from elastic.report import summary
from elastic.report.completion import Completion
from elastic.report.page import page
from elastic.report.report import report
from elastic.report.sentences import sentence
from elastic.report.summary import facts
from elastic.report.view_changes import ChangeKind, recoveries
from elastic_checkpoint.load.diff import DifferenceKind
from tests.kit.story import Story


def a_run_that_lost_a_worker(folder: Path, *, finishes: bool) -> None:
    """Steps 0, 1, 2 under claim 1; then, from step 2 under claim 2, steps 2 and 3."""
    clock = iter(range(100))
    for claim, first, last in ((1, 0, 3), (2, 2, 4)):
        log = EventLog(folder, worker_id=f"w{claim}", clock=lambda: next(clock))
        log.context(rank=0, claim=claim)
        log.emit_named("view_formed", workers=[f"w{claim}", f"x{claim}"], shares=[0, 2])
        log.emit_named("claimed", resumed_from=None)
        log.emit_named(
            "loaded", step=first, epoch=0, from_claim=None, digest="d", accepted=["torch"] if claim == 2 else []
        )
        for step in range(first, last):
            log.emit_named("step_applied", step=step, epoch=0)
        log.emit_named("saved", step=last, bytes=10, seconds=0.5, name="c")
        if claim == 1:
            log.emit_named("peer_lost", step=3, phase="exchange", error="gone", missing=[1])
        elif finishes:
            log.emit_named("finished", step=4, digest="f00d")
        log.close()


def test_a_report_names_replicas_where_they_have_several_workers() -> None:
    """A member was killed, and its mate ended with it; two new ones come in their place."""
    story = Story(replica_size=2).launch(6).train(2).regroup([0, 1, 4, 5])
    for rank, cause in ((2, "it ended with its replica"), (3, "SIGKILL")):
        story._emit(0, "fault_detected", lost=f"w{rank}", of_replica=1, cause=cause, died_t=None, step=2)
    found = report(story.train(4).regroup([0, 1, 2, 3], newcomers=2).train(8).finish().events)

    assert found.replicas == (3, 2, 3)
    assert ("replicas", "3 → 2 → 3") in list(facts(found))
    start, loss, join = map(sentence, found.view_changes)
    assert start == "6 workers in 3 replicas begin"
    assert loss.startswith("lost replica 1 by the end of w3 (SIGKILL): 4 workers in 2 replicas trained again ")
    assert join.startswith("2 joined: 6 workers in 3 replicas go on")
    assert "in 3 replicas" in page("it", story.events)
    of_one = report(Story().launch(3).train(8).finish().events)
    assert "replica" not in str([*facts(of_one), *map(sentence, of_one.view_changes)])


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


def test_what_the_first_worker_has_not_uploaded_yet_others_tell() -> None:
    """On object storage each uploads once a minute, and a view's first worker may be a new one."""
    events = Story().launch(4).train(5).regroup([1, 2, 3]).train(8).events

    def without(rank: int, *, generation: int) -> int:
        return report([e for e in events if (e.get("rank"), e.get("generation")) != (rank, generation)]).steps

    newest = max(event["generation"] for event in events)
    assert report(events).steps == without(0, generation=newest) == without(1, generation=newest) == 8


def test_a_report_says_which_steps_and_examples_were_passed_over() -> None:
    """Step 5 was bad, which took step 4 along; and again, after a restart from before it."""
    story = Story().launch(4).train(5).read().pass_over(first=4).launch(2).train(5).read().pass_over(first=4)
    events = story.train(8).finish().events

    found = report(events)
    assert (found.steps, found.redone) == (6, 2)
    (one,) = found.passed_over
    assert (one.first, one.step, one.why, one.examples_count) == (4, 5, "the loss is nan", 6)
    said = dict(summary.facts(found))
    assert said["passed over"] == "2 steps for 1 bad one, 1 rollback, 6 examples"
    assert found.facts()["passed_over"][0]["examples"] == (0, 1, 2, 3, 4, 5)
    assert "step 5, and with it what was applied since step 4: the loss is nan; 6 examples: 0, 1, 2" in page(
        "x", events
    )


def test_a_report_lists_what_was_left_out_by_the_view_that_applied_the_step() -> None:
    """An example that a lost worker could not read, and the one who read it for the step done again could."""
    events = Story().launch(3).train(3).read().regroup([0, 1]).train(4).finish().events
    fact = {"event": "example_left_out", "attempt": 0, "share": 0, "at": 0, "epoch": 0, "error": "OSError: torn"}
    begun = next(e for e in events if e["event"] == "reads" and e["step"] == 3)
    done = next(e for e in events if e["event"] == "step_applied" and e["step"] == 3)
    assert begun["generation"] < done["generation"]
    told = [{**{key: e[key] for key in ("t", "worker", "generation", "claim", "step")}, **fact} for e in (begun, done)]

    found = report([*events, {**told[0], "index": 7}, {**told[1], "index": 9}])
    assert [(one.step, one.index) for one in found.left_out] == [(3, 9)]


def test_a_rollback_that_a_restart_went_behind_took_nothing_back() -> None:
    """The state of the last save is from before it, and the steps that it took back count again."""
    story = Story().launch(4).train(4).train(5).read().pass_over(first=4)
    found = report(story.launch(2).train(8).finish().events)
    assert (found.steps, found.passed_over) == (8, ())


def test_the_command_says_what_to_do_where_there_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "next" in capsys.readouterr().err


def test_who_left_and_on_whose_word_is_said_with_the_view_that_went_on() -> None:
    story = Story().launch(3).train(2)
    story.events.append({**story.events[-1], "event": "hint", "step": 2, "why": "EC2 recommends to rebalance"})
    story.leave(1, "SIGTERM").leave(2, "a notice to its node: EC2 terminates this Spot Instance").regroup([0]).train(4)
    found = report(story.events)
    change = found.view_changes[-1]
    assert (change.kind, change.left) == ("leave", 2)
    said = sentence(change)
    assert said.startswith(
        "2 workers left (SIGTERM; a notice to its node: EC2 terminates this Spot Instance): 1 worker"
    )
    assert found.hints == ("EC2 recommends to rebalance",)
    assert dict(facts(found))["notices"] == "2 workers told to leave; hint: EC2 recommends to rebalance"


def test_a_killed_agent_is_no_notice_to_leave() -> None:
    """Its workers live on. One is at a boundary and would leave, the other in an exchange that fails: the run goes on
    without both, and the report said that one was told to leave, and that the run ended."""
    story = Story().launch(4).train(2)
    survivor = {"t": story.events[-1]["t"], "worker": "w0", "generation": 2, "rank": 0, "claim": 1}
    agent_lost = {**survivor, "generation": 1, "event": "agent_lost", "step": 2}
    gone = [{**agent_lost, "worker": worker} for worker in ("w2", "w3")]
    story.regroup([0, 1]).train(4).finish()
    fault = {"event": "fault_detected", "cause": "its node was lost", "died_t": None, "step": None}
    events = [*story.events, *gone, *({**survivor, **fault, "lost": worker} for worker in ("w2", "w3"))]
    found = report(sorted(events, key=lambda event: float(event["t"])))

    assert (found.notices, found.agents_lost, found.peers_lost, found.failures) == ((), 2, 2, ())
    agent = "its elastic run was killed or failed"
    (loss,) = [change for change in found.view_changes if change.kind == "loss"]
    assert set(loss.lost.values()) == {agent}
    said = dict(facts(found))
    assert said["lost"] == "2 workers; the elastic run of 2 workers was killed or failed"
    assert "notices" not in said
    assert said["recoveries"].startswith("1, for 2 lost workers (some were lost together): ")


def test_losses_before_the_next_step_are_one_recovery_and_the_counts_agree() -> None:
    """It said "99 of 103 workers", and a status that two views had passed by counted one loss."""
    story = Story().launch(4).train(2).regroup([0, 1, 2]).regroup([0, 1]).train(4).regroup([0]).train(6).finish()
    found = report(story.events)
    assert found.peers_lost == 3
    assert [len(one.losses) for one in recoveries(found.view_changes)] == [2, 1]
    said = dict(facts(found))
    assert said["lost"] == "3 workers"
    assert said["recoveries"].startswith("2, for 3 lost workers (some were lost together): median ")
    first = found.view_changes[1]
    assert recoveries(found.view_changes)[0].begun_t == first.begun_t
    assert "applied no step in it" in sentence(first)


def test_the_terminal_says_what_it_does_not_list_and_where_it_is() -> None:
    """It listed the first and the last twelve changes, and "… 184 more …"."""
    story = Story().launch(3).train(1)
    for at in range(2, 82, 2):
        story = story.regroup([0, 1]).train(at).regroup([0, 1], newcomers=1).train(at + 1)
    found = report(story.events)
    console = Console(file=io.StringIO(), width=200)
    console.print(summary.summary("run", found))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    hidden = re.search(r"(\d+) losses or restarts and (\d+) joins or leaves are not shown: --json has them all", said)
    assert hidden is not None
    listed = len(re.findall(r"step \d+ +lost ", said))
    assert (listed + int(hidden[1]), int(hidden[2])) == (found.peers_lost, 40) == (40, 40)
    assert re.search(r"Losses by cause\s+40  nobody saw it: w\d", said)


def test_who_takes_the_claim_of_a_lost_coordinator_to_save_leaves_for_all() -> None:
    """Under torchrun. The third worker has left as well, and tells it of the claim before."""
    story = Story().launch(3).train(2).leave(2)
    events = story.events
    others = {"worker": events[-1]["worker"], "rank": 1, "generation": 0, "claim": 2, "step": 2}
    last_t = events[-1]["t"]
    saver = {**others, "worker": next(event["worker"] for event in events if event.get("rank") == 1)}
    events.append({**saver, "t": last_t + 0.1, "event": "claimed", "resumed_from": None})
    assert report(events).state == "unfinished"
    events.append({**saver, "t": last_t + 0.2, "event": "left"})
    assert report(events).state == "left"


def test_a_worker_that_was_stopped_is_told_as_such_and_not_only_as_killed() -> None:
    """Its agent's SIGKILL is the remedy, and who looks for the cause should not look for a killer."""
    events = Story().launch(2).train(2).read().regroup([0]).train(4).events
    at = next(index for index, event in enumerate(events) if event.get("generation"))
    facts = {**events[at], "lost": "w1", "step": 2}
    seen = [{**facts, "event": "fault_detected", "cause": "SIGKILL", "died_t": facts["t"] - 1.0}]
    seen += [{**facts, "event": "hang", "stuck_s": 0.5}]
    (loss,) = [
        change for change in report([*events[: at + 1], *seen, *events[at + 1 :]]).view_changes if change.kind == "loss"
    ]
    assert loss.lost == {"w1": "no sign for 0.5 s, then SIGKILL"}


@pytest.mark.parametrize("words", [ChangeKind, Completion, DifferenceKind])
def test_a_state_reads_as_its_word_on_every_page_and_in_json(words: type[Enum]) -> None:
    """Whoever reads `--json` compares strings, and a page names a style after one."""
    for one in words:
        assert json.loads(json.dumps({"kind": one})) == {"kind": one.value}
        assert f"{one}" == str(one) == one.value
        assert type(str(one)) is str

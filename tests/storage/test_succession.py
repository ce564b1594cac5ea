"""A run loses machines while a save is under way: the next claim is taken at once, and the save is told rightly."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic_checkpoint import Checkpointer, Claim, ClaimHeld, ClaimLost, SaveDropped
from elastic_checkpoint.runs.liveness import LivenessServer
from tests.storage.beside import WITHIN_S, Make, newest, state, writers

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SOON_S = 60.0  # the upload below takes for ever


@pytest.fixture
def liveness() -> Any:
    with closing(LivenessServer(nonce="of the run", job=None)) as one:
        yield one


def succeed(runs: Checkpointer, to: Claim, liveness: LivenessServer) -> Claim:
    answers = "of the run", liveness.endpoint()
    return runs.succeed(to, answers=answers, world={"nodes": ["a"]}, ours=lambda claim: True)


def uploads_for_ever(runs: Checkpointer) -> psutil.Process:
    """Its writer process stands still."""
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    [writer] = writers()
    writer.suspend()
    return writer


def test_the_next_claim_waits_for_no_save_and_the_save_is_dropped(
    tmp_path: Path, checkpointer: Make, liveness: LivenessServer
) -> None:
    """An upload may take minutes, and for so long all others would have stood still, or lost the run to fewer ones."""
    lines: list[str] = []
    runs = checkpointer(tmp_path, log=lines.append)
    writer = uploads_for_ever(runs)
    saving = runs.save(2, state(2), blocking=False)
    taken: list[Claim] = []
    taking = threading.Thread(target=lambda: taken.append(succeed(runs, runs.claim(), liveness)), daemon=True)
    taking.start()
    taking.join(SOON_S)
    at_once = bool(taken) and not saving.done
    writer.resume()
    taking.join(WITHIN_S)
    assert at_once, "the claim was not taken before the upload's end"
    assert taken[0].resumed_from is not None
    assert taken[0].resumed_from.step == 1
    with pytest.raises(SaveDropped, match="the job goes on under 2"):
        saving.wait(WITHIN_S)
    assert not any("stop this job" in line for line in lines)
    assert runs.save(3, state(3), blocking=False).wait(WITHIN_S).claim == 2
    assert newest(tmp_path) == 3


@pytest.mark.parametrize("is_told", ["before", "after"])
def test_another_worker_takes_the_next_claim_and_this_one_saves_under_it(
    is_told: str, tmp_path: Path, checkpointer: Make, liveness: LivenessServer
) -> None:
    """It is told so by its next view: before its save comes to its end, or after."""
    runs, other = checkpointer(tmp_path, log=lambda line: None), checkpointer(tmp_path)
    writer = uploads_for_ever(runs)
    saving = runs.save(2, state(2), blocking=False)
    claim = succeed(other, runs.claim(), liveness)
    if is_told == "before":
        runs.adopt(claim)
    writer.resume()
    with pytest.raises(SaveDropped if is_told == "before" else ClaimLost):
        saving.wait(WITHIN_S)
    if is_told == "after":
        with pytest.raises(ClaimLost):
            runs.save(3, state(3), blocking=False)
        runs.adopt(claim)
    assert runs.save(3, state(3), blocking=False).wait(WITHIN_S).claim == 2
    assert newest(tmp_path) == 3


def test_a_save_that_is_committed_before_the_next_claim_is_what_that_goes_on_from(
    tmp_path: Path, checkpointer: Make, liveness: LivenessServer
) -> None:
    runs = checkpointer(tmp_path)
    saving = runs.save(2, state(2), blocking=False)
    assert saving.wait(WITHIN_S).claim == 1
    claim = succeed(runs, runs.claim(), liveness)
    assert claim.resumed_from is not None
    assert claim.resumed_from.step == 2


def test_a_liveness_endpoint_that_answers_for_others_too_says_nothing_of_whether_they_go_on(
    tmp_path: Path, checkpointer: Make, liveness: LivenessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker took the claim for a hub, and went on with another one. The first hub's newcomers held its endpoint for
    the proof that nobody does, and evicted them."""
    monkeypatch.setattr("elastic_checkpoint.runs.heartbeat.EVERY_S", 0.05)
    answers = "of the run", liveness.endpoint()
    holder = checkpointer(tmp_path, answers=answers)
    holder.save(1, state(1))
    newcomer = checkpointer(tmp_path, answers=answers, grace_s=3600.0, log=lambda line: None)
    with pytest.raises(ClaimHeld, match="heartbeats"):
        newcomer.claim(answers_for_others=True)
    holder.close()
    heir = checkpointer(tmp_path, answers=answers, grace_s=0.5, log=lambda line: None)
    assert heir.claim(answers_for_others=True).number == 2
    assert checkpointer(tmp_path, answers=answers, grace_s=3600.0).claim().number == 3  # whose agent knows them all

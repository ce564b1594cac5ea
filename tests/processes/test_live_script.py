"""Live recovery while the script's own code runs: before the loop, between two steps, after the last one.

What it computes there is part of the result, so a state in the middle of it is nobody's to save; who waits there for
others is not hung; and a worker that comes late finds what the others have agreed on.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import POLL_S, Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Fault, Hold, Kill, KillAgent, Plan

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "around.py"
HANG_S = 4  # a worker of a busy machine may be without a processor for a second or two
WAITED_S = 10.0  # more than twice what a worker that computes may take


def around(elastic_cluster: MakeCluster, faults: Sequence[Fault] = (), **options: Any) -> Cluster:
    return elastic_cluster(script=PROGRAM, workers=4, launcher="elastic", plan=Plan(tuple(faults)), **options)


def complete(phase: str) -> At:
    return At(None, phase, world_size=4)


def is_the_undisturbed(end: End, alone: End) -> None:
    """Equal step by step, and in what the script has made of its evaluations."""
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.weights_sha256 == alone.weights_sha256
    assert history(end) == history(alone)


def history(end: End) -> list[str]:
    (line,) = re.findall(r"^(?:\[.*?\]:)?history (.*)$", end.output, re.M)
    return list(line.split())


@pytest.mark.nightly(sample=1, of="losses around the loop")
def test_an_evaluation_before_the_loop_survives(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """Of those who know its result some are lost, while a replacement receives the state."""
    faults: list[Fault] = [Kill(2, complete("evaluate")), Kill(3, complete("in_transfer")), Kill(1, complete("data"))]
    run = around(elastic_cluster, faults, steps=60, unhurried=4)
    is_the_undisturbed(run.finish(within_s=240), elastic_undisturbed(script=PROGRAM, steps=60))


@pytest.mark.nightly(sample=1, of="losses around the loop")
def test_agent_and_worker_are_killed_in_an_evaluation(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """Those who are left save nothing: the script's code has run half, and no boundary is reached any more."""
    faults: list[Fault] = [KillAgent(2, At(20, "evaluate")), Kill(2, At(20, "evaluate"))]
    run = around(elastic_cluster, faults, steps=40, save_every=7)
    cut = run.finish(within_s=240)
    assert (cut.exit_code, cut.left_behind) == (-signal.SIGKILL, ()), cut.output
    assert max(event["step"] for event in cut.events if event["event"] == "saved") <= 14

    is_the_undisturbed(run.start().finish(within_s=240), elastic_undisturbed(script=PROGRAM, steps=40))


@pytest.mark.nightly(sample=1, of="what is no hang")
def test_an_evaluation_that_is_done_again_is_not_a_hang(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """As a whole it takes longer than the limit, each of its batches a fifth of that."""
    run = around(elastic_cluster, [Kill(2, At(5, "evaluate"))], slow_evaluation=5, options=["--hang-limit=3"], steps=12)
    end = run.finish(within_s=240)
    assert "is stuck" not in end.output
    is_the_undisturbed(end, elastic_undisturbed(script=PROGRAM, steps=12))


@pytest.mark.nightly(sample=1, of="what is no hang")
def test_a_slow_last_save_is_not_a_hang(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    run = around(elastic_cluster, [Hold(0, At(11, "save"))], steps=12, options=[f"--hang-limit={HANG_S}"])
    run.wait_held(within_s=240)
    time.sleep(WAITED_S)
    run.let_go()
    end = run.finish(within_s=240)
    assert "is stuck" not in end.output
    is_the_undisturbed(end, elastic_undisturbed(script=PROGRAM, steps=12))


@pytest.mark.nightly(sample=1, of="losses around the loop")
def test_a_worker_is_lost_while_all_wait_for_one_to_leave_the_loop(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Three have left the loop by `break` and wait, with patience; one of them dies; the fourth leaves it, too."""
    go = tmp_path / "go"
    stops: dict[str, Any] = {"break_at": 8, "save_every": 100}
    run = around(elastic_cluster, wait=go, wait_at=8, options=[f"--hang-limit={HANG_S}"], **stops)
    run.start()
    until(Path(f"{go}.awaited").exists)
    time.sleep(WAITED_S)
    workers = next(event for event in run.events() if event["event"] == "view_formed")["workers"]
    os.kill(int(workers[2].rsplit("-", 2)[1]), signal.SIGKILL)
    run.wait_for(lambda event: event["event"] == "peer_lost", within_s=240)
    go.touch()
    end = run.finish(within_s=240)
    assert end.exit_code == 0, end.output
    assert "is stuck" not in end.output
    assert end.left_behind == ()
    alone = elastic_undisturbed(script=PROGRAM, **stops)
    assert (history(end), end.weights_sha256) == (history(alone), alone.weights_sha256)


@pytest.mark.nightly(sample=1, of="what is no hang")
def test_a_long_section_between_steps_is_not_a_hang(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = around(elastic_cluster, wait=go, wait_at=5, steps=12, options=[f"--hang-limit={HANG_S}"])
    run.start()
    until(Path(f"{go}.awaited").exists)
    time.sleep(WAITED_S)
    go.touch()
    end = run.finish(within_s=240)
    assert "is stuck" not in end.output
    is_the_undisturbed(end, elastic_undisturbed(script=PROGRAM, steps=12))


@pytest.mark.nightly(sample=1, of="what is no hang")
def test_an_agent_learns_how_long_what_the_coordinator_alone_does_takes(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """An agent with a single worker saw that others were past the step, took that for the proof of a hang, and killed
    the next coordinator as soon, until none of the node's restarts was left."""
    run = elastic_cluster(
        script=PROGRAM, workers=2, nodes=2, launcher="elastic", options=["--hang-limit=4"], steps=12, samples_every=3
    )
    end, alone = run.finish(within_s=240), elastic_undisturbed(script=PROGRAM, steps=12)
    assert 1 <= len(re.findall("it has been between two steps for", end.output)) <= 2, end.output
    assert "with run.long_section():" in end.output
    assert {violation.invariant for violation in end.verdict.violations} == {"lost"}, end.verdict
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert (history(end), end.weights_sha256) == (history(alone), alone.weights_sha256)


def test_a_script_that_fails_after_the_run_is_told_and_restarts_nothing(elastic_cluster: MakeCluster) -> None:
    """The result is in storage; the launcher's exit status says that something went wrong."""
    run = around(elastic_cluster, steps=12, crash_after=2)
    end = run.finish(within_s=240)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind) == (1, ())
    assert end.output.count("RuntimeError: after the end") >= 1
    assert len(end.world_sizes) == 1


def until(holds: Callable[[], bool], *, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(POLL_S)

"""A node that hears nothing while the run goes on without it to its end, and comes back then, ends in seconds."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from elastic.events.reading import read_events
from elastic.membership.exit_statuses import AGAIN
from tests.kit.agents import WITHIN_S, meet
from tests.kit.launch import Launch

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STEPS = 30


def test_a_node_without_which_the_run_has_come_to_its_end_ends_and_says_so(tmp_path: Path) -> None:
    """It looked for a hub of the run for ten minutes."""
    url, hurry = tmp_path / "run", tmp_path / "hurry"
    command = ["run", *meet("1:2"), PROGRAM, url, f"--steps={STEPS}", f"--slow-until={hurry}"]
    with Launch("elastic", command) as one, contextlib.ExitStack() as stack:
        one.wait_for((url / "elastic" / "hub.json").exists, "a hub", within_s=WITHIN_S)
        other = stack.enter_context(Launch("elastic", command))
        one.wait_for(lambda: in_one_view(url), "a step of both nodes", within_s=WITHIN_S)
        stopped = other.pids
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        hurry.touch()
        one.succeed(within_s=WITHIN_S)
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        end = other.finish(within_s=WITHIN_S)
        assert (end, "have refused connections: it is over, or lost" in other.output) == (AGAIN, True), other.output


def in_one_view(url: Path) -> bool:
    events = read_events(url)
    applied = {event["generation"] for event in events if event["event"] == "step_applied"}
    formed = [event for event in events if event["event"] == "view_formed" and len(event["workers"]) == 2]
    return any(event["generation"] in applied for event in formed)

"""A node that has come to a run, and loses it before it has its state, waits for it while others go on."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from elastic.events.reading import read_events
from tests.kit.agents import WITHIN_S, meet
from tests.kit.launch import Launch

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
BEGINS = """
import os, runpy, sys, time
if "AWAITS" in os.environ:
    print("it is here", flush=True)
    while not os.path.exists(os.environ["AWAITS"]):
        time.sleep(0.05)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_node_that_loses_the_run_before_it_has_its_state_waits_while_others_go_on(tmp_path: Path) -> None:
    """It began anew from the storage, was refused there by the claim's holder, and ended with 1 after the second time.

    The hub's agent is stopped, its worker trains on: as where a network lets nodes reach the storage alone.
    """
    url, hurry, begins = tmp_path / "run", tmp_path / "hurry", tmp_path / "begins"
    (tmp_path / "train.py").write_text(BEGINS)
    command = ["run", *meet("1:3"), tmp_path / "train.py", PROGRAM, url, "--steps=400", f"--slow-until={hurry}"]
    with contextlib.ExitStack() as stack:
        one, two = [stack.enter_context(Launch("elastic", command)) for _ in range(2)]
        one.wait_for(lambda: 2 in workers(url), "a view of two", within_s=WITHIN_S)
        other = stack.enter_context(Launch("elastic", command, env={"AWAITS": str(begins)}))
        other.wait_for(lambda: "it is here" in other.output, "its script", within_s=WITHIN_S)
        for node in (one, two):
            node.send(signal.SIGSTOP)
        begins.touch()
        other.wait_for(lambda: "others of this run go on" in other.output, "its word", within_s=WITHIN_S)
        for node in (one, two):
            node.send(signal.SIGCONT)
        one.wait_for(lambda: workers(url)[-1] == 3, "a view of all", within_s=WITHIN_S)
        hurry.touch()
        for node in (one, two, other):
            node.succeed(within_s=WITHIN_S)


def workers(url: Path) -> list[int]:
    """Of each view that was formed."""
    return [len(event["workers"]) for event in read_events(url) if event["event"] == "view_formed"]

"""Notices again and again in one run, at moments that are drawn; see tests/kit/random_notices.py.

make notices NOTICES=100 SEED=7
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic.events.reading import read_events
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed
from tests.kit.random_notices import drawn
from tests.kit.sampling import NIGHTLY, ROTATION
from tests.kit.told_nodes import PROGRAM, WITHIN_S, ToldNodes

SEED = int(os.environ.get("SEED", ROTATION))
WORKERS = 1 + SEED % 2  # of each node
COUNT = int(os.environ.get("NOTICES", "25" if NIGHTLY else "3"))


@pytest.mark.timeout(300 + 120 * COUNT)
def test_nodes_are_told_at_any_moment_and_no_notice_is_lost_and_no_step_done_twice(tmp_path: Path) -> None:
    """Whatever the run is doing: it imports, compiles, forms a view, evaluates, saves, loads, is in a long section."""
    notices = drawn(SEED, COUNT)
    with ExitStack() as stack:
        nodes = ToldNodes(tmp_path, stack, workers=WORKERS)
        for number, told in enumerate(notices):
            sys.stdout.write(f"SEED={SEED} notice {number}: {told}\n")
            sys.stdout.flush()
            nodes.give(told)
        nodes.finish()
        redone, events = nodes.of("redo"), nodes.events
        applied = Counter(event["step"] for event in nodes.of("step_applied") if event["rank"] == 0)
        finished = nodes.of("finished")
    steps = max(applied) + 1
    with Launch(PROGRAM, [tmp_path / "alone", f"--steps={steps}"]) as undisturbed:
        undisturbed.succeed(within_s=WITHIN_S)
    (alone,) = [event["digest"] for event in read_events(tmp_path / "alone") if event["event"] == "finished"]

    replay = f"make notices NOTICES={COUNT} SEED={SEED}"
    assert not redone, f"{redone}\n{replay}"
    assert applied == Counter(range(steps)), replay
    assert {event["digest"] for event in finished} == {alone}, replay  # each worker says it
    assert_observed(events)
    by = ", ".join(f"{who} {n}" for who, n in sorted(Counter(told.who.value for told in notices).items()))
    sys.stdout.write(
        f"{COUNT} notices to nodes of {WORKERS} (SEED={SEED}; {by}): "
        f"none lost, no step of {steps} redone, weights as undisturbed\n"
    )


@pytest.mark.nightly(sample=1, of="notices at a moment")
def test_a_worker_that_joins_after_the_notice_may_take_as_long_as_any_to_leave(tmp_path: Path) -> None:
    """It was killed 5 s after the notice, as one whose script never comes to its Run; by then it was in a view, and the
    run counted as failed. SEED=15 found it, on a busy machine."""
    with ExitStack() as stack:
        nodes = ToldNodes(tmp_path, stack)
        node = nodes.start("start")
        node.wait_until_held()
        node.tell("SIGTERM")
        node.wait_until_told()
        node.is_to_hold("claim", after=True)
        node.wait_until_held()
        time.sleep(6.0)  # more than the 5 s; no event marks that nothing happens
        node.goes_on()
        node.departs()

"""The connection of a node to the hub breaks, and both are there: the run goes on with both."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic.events.reading import read_events
from tests.kit.agents import meet
from tests.kit.launch import Launch
from tests.kit.peer import Peer, roster_at
from tests.kit.told_at import AT, FOLDER, GOES, HOLDS, OBSERVER

WITHIN_S = 240.0
STEPS = 60
HELD_UP_S = 2.0  # less than a hub may be silent


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def breaks(url: Path) -> None:
    """The second node's. Somebody says hello as that node: the hub takes its own connection for one that is lost."""
    hub = json.loads((url / "elastic" / "hub.json").read_text())
    at = hub["host"], hub["port"]
    _, (name, _, port) = roster_at(at, None, hub["nonce"])
    with Peer(at, None) as same:
        same.joins(name, hub["nonce"], port=port)


def test_a_newcomer_whose_connection_breaks_before_it_has_the_state_is_back_in_the_run(
    stack: ExitStack, tmp_path: Path
) -> None:
    """It took itself for the hub, and began from the storage, which belongs to those who train: it ended with 1."""
    url, hurry, newcomer = tmp_path / "run", tmp_path / "hurry", tmp_path / "newcomer"
    newcomer.mkdir()
    (newcomer / AT).write_text("transfer")
    script = ["-m", "tests.kit.programs.small", url, f"--steps={STEPS}", f"--slow-until={hurry}"]
    command = ["run", "--no-status", *meet("1:3"), *script]
    first = stack.enter_context(Launch("elastic", command))
    first.wait_for(lambda: applied(url) >= 1, "a step", within_s=WITHIN_S)
    second = stack.enter_context(Launch("elastic", command, env={FOLDER: str(newcomer), "ELASTIC_OBSERVER": OBSERVER}))
    second.wait_for((newcomer / HOLDS).exists, "a view with the newcomer", within_s=WITHIN_S)
    breaks(url)
    first.send(signal.SIGSTOP)
    (newcomer / GOES).touch()
    time.sleep(HELD_UP_S)
    first.send(signal.SIGCONT)
    second.wait_for(lambda: is_together(url), "a step of both", within_s=WITHIN_S)
    hurry.touch()
    ends = [node.finish(within_s=WITHIN_S) for node in (first, second)]
    assert ends == [0, 0], [first.output, second.output]


def applied(url: Path) -> int:
    return sum(event["event"] == "step_applied" for event in read_events(url)) if url.exists() else 0


def is_together(url: Path) -> bool:
    """Whether the newest view is of both, and has applied a step."""
    events = read_events(url)
    newest = [event for event in events if event["event"] == "view_formed"][-1]
    return len(newest["workers"]) == 2 and any(
        event["event"] == "step_applied" and event["t"] > newest["t"] for event in events
    )

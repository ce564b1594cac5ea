"""All nodes of a run are told to leave: the others upload parts of the coordinator's last save, or cost it nothing.

What a helper can do wrong is in tests/storage/test_helpers.py; here are whole runs, of agents of this machine.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import elastic_checkpoint
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.report.report import report
from elastic_checkpoint.save.writer import WRITER_MODULE
from elastic_checkpoint.testing import Delay, Hang, Plan
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed

PROGRAM = "tests.kit.programs.shares"
WITHIN_S = 240.0
DATA = "*/data/*"
LONG_S = 600.0
BEGUN = Delay(0.0, on="write", path="*/s000000000-*")  # the state that the run begins with is no matter here
SLOW = Plan(BEGUN, Delay(3.0, on="write", path=DATA))
UNHURRIED = Plan(BEGUN, Delay(0.5, on="write", path=DATA))  # else it stores a later one's part as well


class Nodes:
    """One run, of nodes that are `elastic run` processes of this machine. The first one's worker coordinates."""

    def __init__(self, folder: Path, stack: ExitStack, nodes: int) -> None:
        self._folder, self._stack, self._nodes = folder, stack, nodes
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._meet = [f"--nnodes=1:{nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        self.launched: list[Launch] = []

    @property
    def url(self) -> Path:
        return self._folder / "run"

    def start(self, plan: Plan, *args: str) -> Launch:
        """plan: what goes wrong with this node's way to the storage, on record in `struck`"""
        number = len(self.launched)
        script = [*self.script(plan, record=f"faults-{number}"), f"--nodes={self._nodes}", *args]
        command = ["run", "--no-status", *self._meet, "--rdzv-id=shares", "-m", PROGRAM, *script]
        launch = self._stack.enter_context(Launch("elastic", command))
        self.launched.append(launch)
        if number == 0 and self._nodes > 1 and "--warm-after=inf" not in args:
            self.waiting("a writer process, which others can help", self._has_a_writer)
        if number < self._nodes - 1:  # whoever comes later has a later rank
            self.waiting("steps", (self._folder / f"shared-by-{number + 1}").exists)
        return launch

    def script(self, plan: Plan, *, record: str, folder: str = "run") -> list[str]:
        options = {"target_protocol": "file", "target_options": {"auto_mkdir": True}, "faults": plan.document()}
        storage = json.dumps({**options, "record": str(self._folder / record)})
        return [f"faulty://{self._folder / folder}", str(self._folder), f"--storage={storage}"]

    def leave(self) -> None:
        """All of them, at one step."""
        waits = [self._folder / f"waits-{rank}" for rank in range(self._nodes)]
        self.waiting("workers that wait", lambda: all(one.exists() for one in waits))
        for launch in self.launched:
            launch.send(signal.SIGTERM)

    def _has_a_writer(self) -> bool:
        beneath = psutil.Process(self.launched[0].process.pid).children(recursive=True)
        for one in beneath:
            with suppress(psutil.NoSuchProcess):  # or it has just ended
                if WRITER_MODULE in one.cmdline():
                    return True
        return False

    def waiting(self, what: str, holds: Callable[[], bool]) -> None:
        self.launched[0].wait_for(holds, what, within_s=WITHIN_S)

    def struck(self, number: int) -> list[dict[str, Any]]:
        """The faults of this node's storage, so far."""
        record = self._folder / f"faults-{number}"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    def finish(self) -> list[int]:
        return [launch.finish(within_s=WITHIN_S) for launch in self.launched]

    @property
    def output(self) -> str:
        return "\n".join(launch.output for launch in self.launched)

    @property
    def events(self) -> list[Event]:
        return read_events(self.url) if self.url.exists() else []

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def saved(self) -> Event:
        """The save on leaving, which is whole."""
        with elastic_checkpoint.Checkpointer(self.url) as runs:
            assert all(one.ok for one in runs.verify())
            newest = runs.latest()
            assert newest is not None
        (saved,) = [event for event in self.of("saved") if event["step"] > 0]
        assert (saved["step"], saved["name"]) == (newest.step, newest.name)
        return saved


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[int], Nodes]]:
    with ExitStack() as stack:
        made: list[Nodes] = []

        def make(nodes: int) -> Nodes:
            made.append(Nodes(tmp_path, stack, nodes))
            return made[-1]

        yield make
        for one in made:
            assert_observed(one.events)


@pytest.mark.nightly(sample=1, of="saves and losses")
def test_all_leave_and_each_node_has_uploaded_a_part(run: Callable[[int], Nodes]) -> None:
    """One of them holds other bytes in one object: it uploads the others."""
    nodes = run(3)
    nodes.start(SLOW)
    nodes.start(UNHURRIED)
    nodes.start(UNHURRIED, "--odd")
    nodes.leave()
    assert nodes.finish() == [0, 0, 0], nodes.output
    saved = nodes.saved()
    assert saved["helped"].keys() == {"1", "2"}, nodes.output
    assert 0 < sum(saved["helped"].values()) < saved["bytes"]
    assert {event["step"] for event in nodes.of("left")} == {saved["step"]}
    assert not nodes.of("peer_lost") + nodes.of("redo")
    assert report(nodes.events).state == "left"

    alone = ["--nodes=0", f"--steps={saved['step'] + 2}"]
    with Launch(PROGRAM, [*nodes.script(Plan(), record="-"), *alone]) as goes_on:  # at another size
        goes_on.succeed(within_s=WITHIN_S)
    loaded = next(event for event in nodes.of("loaded") if event["step"] == saved["step"])
    with elastic_checkpoint.Checkpointer(nodes.url) as runs:
        assert loaded["digest"] == elastic_checkpoint.digest(runs.read(step=saved["step"]).tree["model"])
    with Launch(PROGRAM, [*nodes.script(Plan(), record="-", folder="other"), *alone]) as undisturbed:
        ended = undisturbed.succeed(within_s=WITHIN_S)
    assert f"with {nodes.of('finished')[0]['digest']}" in ended, "other bits than without all this"


def test_others_help_a_coordinator_that_has_no_writer_process_yet(run: Callable[[int], Nodes]) -> None:
    """It is younger than two seconds, or has come to no boundary since, as in a long section: it uploaded alone."""
    nodes = run(2)
    nodes.start(SLOW, "--warm-after=inf")
    nodes.start(Plan(), "--warm-after=inf")
    nodes.leave()
    assert nodes.finish() == [0, 0], nodes.output
    saved = nodes.saved()
    assert saved["helped"].keys() == {"1"}, nodes.output
    assert 0 < sum(saved["helped"].values()) < saved["bytes"]


@pytest.mark.nightly(sample=1, of="saves and losses")
@pytest.mark.parametrize("what", ["killed", "hangs"])
def test_a_node_that_comes_to_no_end_with_its_part_costs_no_save(run: Callable[[int], Nodes], what: str) -> None:
    nodes = run(3)
    nodes.start(SLOW)
    nodes.start(Plan())
    hangs = Delay if what == "killed" else Hang
    nodes.start(Plan(BEGUN, hangs(LONG_S, on="write", path=DATA)))
    nodes.leave()
    if what == "killed":
        nodes.waiting("an upload", lambda: nodes.struck(2) != [])
        os.kill(nodes.struck(2)[0]["pid"], signal.SIGKILL)
    statuses = nodes.finish()
    saved = nodes.saved()
    assert "2" not in saved.get("helped", {})
    if what == "hangs":
        assert statuses == [0, 0, 0], nodes.output
        assert saved["helped"].keys() == {"1"}
    assert statuses[0] == 0, nodes.output
    assert report(nodes.events).state == "left"


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("stored", ["nothing", "a part"])
def test_an_older_save_that_would_take_all_of_the_time_gives_way_to_the_newest(
    run: Callable[[int], Nodes], monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    """It was uploaded first, and the newest state waited behind it until the machine was gone."""
    monkeypatch.setenv("ELASTIC_GRACE_S", "40")
    nodes = run(1)
    hanging = "*/s000000002-*" if stored == "nothing" else "*/s000000002-*/0001*"
    nodes.start(Plan(Hang(LONG_S, on="write", path=hanging)), *["--warm-after=0", "--save-every=2", "--waits-at=3"])
    nodes.waiting("an upload that hangs", lambda: nodes.struck(0) != [])
    nodes.leave()
    assert nodes.finish() == [0], nodes.output
    assert nodes.saved()["step"] == 4
    (order,) = nodes.of("save_order")
    assert (order["older"], order["step"], order["first"]) == (2, 4, "newest")
    assert not nodes.of("save_failed")
    assert "the save of step 2 is given up for that of step 4: only one is likely to be done" in nodes.output


def test_of_one_node_nobody_is_asked(run: Callable[[int], Nodes]) -> None:
    nodes = run(1)
    nodes.start(Plan())
    nodes.leave()
    assert nodes.finish() == [0], nodes.output
    assert "helped" not in nodes.saved()

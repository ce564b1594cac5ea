"""A notice of a cloud, in real runs: the node that it names leaves at a step boundary, and the record says why.

What each source hears is in tests/pure/test_notice_sources.py; a node's leaving itself, whatever tells it, in
test_leaving.py and the drills; notices at each moment of a run in test_random_notices.py.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.report.report import report
from tests.kit.launch import Launch
from tests.kit.metadata import MetadataServer
from tests.kit.observed import assert_observed

pytestmark = pytest.mark.nightly(sample=2, of="notices in real runs")

PROGRAM = "tests.kit.programs.small"
WITHIN_S = 240.0


class Nodes:
    """One run, on nodes that are `elastic run` processes of this machine; it goes slowly until it may end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.url, self._folder, self._stack = folder / "run", folder, stack

    def start(self, *flags: str, launcher: str | None = "elastic") -> Launch:
        """launcher None: torchrun"""
        script = [self.url, "--steps=200", "--save-every=1000000", f"--slow-until={self._folder / 'hurry'}"]
        if launcher is None:
            env = {"ELASTIC_NOTICES": flags[0]}
            return self._stack.enter_context(Launch(PROGRAM, script, workers=2, env=env))
        command = ["run", "--no-status", *flags, "-m", PROGRAM, *script]
        return self._stack.enter_context(Launch("elastic", command))

    def hurry(self) -> None:
        (self._folder / "hurry").touch()

    @property
    def events(self) -> list[Event]:
        return read_events(self.url) if self.url.exists() else []

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def applied(self, world_size: int) -> int:
        """How many steps by so many workers together."""
        return max(
            (event["step"] + 1 for event in self.of("step_applied") if event["world_size"] == world_size), default=0
        )


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        run = Nodes(tmp_path, stack)
        yield run
        assert_observed(run.events)


def two_nodes() -> list[str]:
    """The flags of both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=notices"]


def waiting(launch: Launch, what: str, holds: Callable[[], bool]) -> None:
    launch.wait_for(holds, what, within_s=WITHIN_S)


def test_a_node_whose_file_says_so_leaves_in_a_step_and_the_other_goes_on(nodes: Nodes, tmp_path: Path) -> None:
    meet = two_nodes()
    says = tmp_path / "says"
    stays = nodes.start(*meet, "--notices=none")
    goes = nodes.start(*meet, f"--notices=auto,file:{says}")
    waiting(stays, "steps of both", lambda: nodes.applied(2) >= 2)
    says.write_text("leave 90 the price went up")
    assert goes.finish(within_s=WITHIN_S) == 0, goes.output
    nodes.hurry()
    assert stays.finish(within_s=WITHIN_S) == 0, stays.output

    (notice,) = nodes.of("notice")
    assert notice["signal"] == f"a notice to its node: {says} says leave: the price went up"
    assert 0 < notice["left_s"] <= 90
    assert [event["worker"] for event in nodes.of("left")] == [notice["worker"]]
    assert not nodes.of("peer_lost") + nodes.of("redo")
    assert len(nodes.of("finished")) == 1
    said = report(nodes.events)
    assert (said.state, said.redone, said.peers_lost) == ("finished", 0, 0)
    assert re.search(r"says leave: the price went up, in \d+ s: the worker of this node leaves", goes.output)
    assert "the price went up); the same command goes on with the run (status 0)" in goes.output
    assert goes.output.count("the same command") == 1


def test_ec2_recommends_and_the_run_saves_then_takes_the_node_and_all_leave_what_is_saved(
    nodes: Nodes, tmp_path: Path
) -> None:
    """The status is for a scheduler that starts again what did not end with 0, the hook for who orders machines."""
    told = tmp_path / "told"
    hook = f'--on-notice=echo "$ELASTIC_NOTICE_KIND, $ELASTIC_NOTICE_SOURCE: $ELASTIC_NOTICE_WHY" >> {told}'
    with MetadataServer() as ec2:
        flags = ["--standalone", "--nproc-per-node=2", f"--notices=ec2:{ec2.endpoint}", "--leave-status=75"]
        node = nodes.start(*flags, hook)
        waiting(node, "steps", lambda: nodes.applied(2) >= 2)
        ec2.rebalance()
        waiting(node, "the save on the hint", lambda: any(event["step"] > 0 for event in nodes.of("saved")))
        saved = max(event["step"] for event in nodes.of("saved"))
        waiting(node, "a step after it", lambda: nodes.applied(2) > saved + 1)
        assert not nodes.of("notice") + nodes.of("left")
        waiting(node, "the hook", told.exists)
        ec2.interrupt(in_s=100)
        assert node.finish(within_s=WITHIN_S) == 75, node.output

    assert told.read_text().startswith("hint, ec2: EC2 recommends to rebalance")
    assert len({event["worker"] for event in nodes.of("hint")}) == 2
    assert {event["step"] for event in nodes.of("hint")} <= {saved - 1, saved}
    assert "at a higher risk: the run saves at the next step, and goes on" in node.output
    notices = nodes.of("notice")
    assert {event["signal"] for event in notices} == {"a notice to its node: EC2 terminates this Spot Instance"}
    assert all(0 < event["left_s"] <= 100 for event in notices)
    left = {event["step"] for event in nodes.of("left")}
    assert max(left) - min(left) <= 1, "each worker is told by itself, maybe on two sides of a boundary"
    assert max(event["step"] for event in nodes.of("saved")) == max(left)
    assert not nodes.of("peer_lost") + nodes.of("redo")
    assert report(nodes.events).state == "left"
    assert (
        "has left (EC2 terminates this Spot Instance); the same command goes on with the run (status 75)" in node.output
    )


@pytest.mark.nightly(sample=1, of="hints")
def test_a_save_on_a_hint_that_fails_is_made_again_and_a_replaced_worker_does_not_ask_for_another(
    nodes: Nodes, tmp_path: Path
) -> None:
    """The cadence's next save may be an hour away, and the machine is at risk now."""
    says, data, away = tmp_path / "says", nodes.url / "data", tmp_path / "away"
    node = nodes.start("--standalone", "--nproc-per-node=2", f"--notices=file:{says}")
    waiting(node, "steps", lambda: nodes.applied(2) >= 2)
    data.rename(away)
    data.write_text("a file")
    says.write_text("hint the price went up")
    waiting(node, "a save that fails", lambda: bool(nodes.of("save_failed")))
    data.unlink()
    away.rename(data)
    waiting(node, "the save", lambda: nodes.of("saved")[-1]["step"] > 0)
    (victim,) = {event["worker"] for event in nodes.of("step_applied") if event["rank"] == 1}
    os.kill(int(victim.split("-")[-2]), signal.SIGKILL)
    waiting(node, "another worker", lambda: len(nodes.of("run_started")) == 3)
    newcomer = nodes.of("run_started")[-1]["worker"]
    waiting(node, "its steps", lambda: any(event["worker"] == newcomer for event in nodes.of("step_applied")))
    saved = len(nodes.of("saved"))
    nodes.hurry()
    assert node.finish(within_s=WITHIN_S) == 0, node.output
    assert len(nodes.of("hint")) == 2
    assert len(nodes.of("saved")) == saved + 1  # the last one of the run


@pytest.mark.nightly(sample=1, of="too few nodes")
@pytest.mark.parametrize("hosts_the_store", ["who stays", "who goes"])
def test_below_its_minimum_a_run_saves_then_waits_and_goes_on_when_a_node_comes(
    nodes: Nodes, hosts_the_store: str
) -> None:
    """It saves at the end only: the steps of both are nowhere but in the memory of the node that is left. With the
    other one the store may go where they met: then who comes opens one, and hears there of the hub."""
    meet = [*two_nodes()[1:], "--nnodes=2:2", "--notices=none", "--wait-for-nodes=inf"]
    first = nodes.start(*meet)
    waiting(first, "the store", lambda: "waiting at" in first.output)
    second = nodes.start(*meet)
    stays, goes = (first, second) if hosts_the_store == "who stays" else (second, first)
    waiting(stays, "steps of both", lambda: nodes.applied(2) >= 2)
    goes.send(signal.SIGTERM)
    assert goes.finish(within_s=WITHIN_S) == 0, goes.output
    (left,) = {event["step"] for event in nodes.of("left")}
    waiting(stays, "the save", lambda: nodes.of("saved")[-1]["step"] == left)
    assert nodes.applied(1) == 0
    comes = nodes.start(*meet)
    nodes.hurry()
    for node in (stays, comes):
        assert node.finish(within_s=WITHIN_S) == 0, node.output
    assert "1 of at least 2 nodes are here" in stays.output + goes.output
    assert not nodes.of("redo") + nodes.of("peer_lost")
    assert len(nodes.of("finished")) == 2


HELD = """
import pathlib, sys, time, torch, elastic

folder = pathlib.Path(sys.argv[1])


def hold(what):
    if (folder / f"hold-{what}").exists():
        (folder / f"holds-{what}").touch()
        while not (folder / f"goes-{what}").exists():
            time.sleep(0.02)


class Held:
    def state_dict(self):
        return {"one": 1}

    def load_state_dict(self, state):
        hold("load")


model = torch.nn.Linear(4, 1)
with elastic.Run(
    folder / "run",
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    dataset=torch.utils.data.TensorDataset(torch.arange(256.0).view(64, 4)),
    extra={"held": Held()},
    batch_size=16,
    virtual_workers=4,
    steps=1_000_000,
    save_every="1h",
) as run:
    for step in run:
        for (points,) in step:
            hold("step")
            step.backward(model(points).square().sum(), len(points))
"""
"""It waits where a file says so, until another one is there."""


class Held:
    """A node whose worker is held in a step, or in loading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "held.py").write_text(HELD)

    def start(self, at: str, *flags: str, **environ: str) -> Launch:
        (self._folder / f"hold-{at}").touch()
        script = [str(self._folder / "held.py"), str(self._folder)]
        launch = Launch("elastic", ["run", "--no-status", "--leave-status=75", *flags, *script], env=environ)
        waiting(launch, f"a worker in its {at}", (self._folder / f"holds-{at}").exists)
        return launch

    def goes_on(self, at: str) -> None:
        (self._folder / f"goes-{at}").touch()

    @property
    def saved(self) -> list[int]:
        events = read_events(self._folder / "run")
        return [event["step"] for event in events if event["event"] == "saved"]


@pytest.mark.nightly(sample=1, of="notices at a moment")
def test_a_worker_has_as_long_as_the_machine_where_that_is_longer_than_the_flag_says(tmp_path: Path) -> None:
    """It was killed after --shutdown-timeout, 300 s, in an evaluation of six minutes, though ten were announced."""
    held = Held(tmp_path)
    with held.start("step", "--shutdown-timeout=1", ELASTIC_GRACE_S="600") as launch:
        launch.send(signal.SIGTERM)
        waiting(launch, "the notice", lambda: "SIGTERM, in 10 min" in launch.output)
        time.sleep(2.5)  # more than the flag says; no event marks that nothing happens
        held.goes_on("step")
        assert launch.finish(within_s=WITHIN_S) == 75, launch.output
    assert held.saved[-1] == 1


@pytest.mark.nightly(sample=1, of="notices at a moment")
def test_a_signal_to_every_process_while_the_state_is_loaded_is_a_leave_in_order(tmp_path: Path) -> None:
    """As Slurm sends it. The worker had said that it is ready, and died of it: the node ended with 1."""
    held = Held(tmp_path)
    with held.start("step") as first:
        first.send(signal.SIGTERM)
        held.goes_on("step")
        assert first.finish(within_s=WITHIN_S) == 75, first.output
    with held.start("load") as again:
        for pid in again.pids:
            os.kill(pid, signal.SIGTERM)
        waiting(again, "the notice", lambda: "SIGTERM: the worker" in again.output)
        held.goes_on("load")
        assert again.finish(within_s=WITHIN_S) == 75, again.output
        assert "ended otherwise" not in again.output


def test_under_torchrun_the_first_worker_of_a_node_watches_and_all_save_and_leave(nodes: Nodes, tmp_path: Path) -> None:
    says = tmp_path / "says"
    torchrun = nodes.start(f"file:{says}", launcher=None)
    waiting(torchrun, "steps", lambda: nodes.applied(2) >= 2)
    says.write_text("leave 90")
    assert torchrun.finish(within_s=WITHIN_S) == 0, torchrun.output

    (notice,) = [event for event in nodes.of("notice") if event["signal"] is not None]
    assert (notice["signal"], notice["rank"]) == (f"{says} says leave", 0)
    assert 0 < notice["left_s"] <= 90
    (left,) = {event["step"] for event in nodes.of("left")}
    assert len(nodes.of("left")) == 2
    assert max(event["step"] for event in nodes.of("saved")) == left
    assert not nodes.of("peer_lost") + nodes.of("redo")

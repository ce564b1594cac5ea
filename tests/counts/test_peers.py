"""Whoever reaches the hub of a run that has a secret: the run trains on to the undisturbed weights.

Somebody who sends again what went over the wire; who has another secret; who has the run's own, and says absurd things;
who calls itself as a node that is there. Each so often: `make counts PEERS=60 COUNTS_SEED=7`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elastic.events.reading import read_events
from elastic.membership.messages.messages import TO_HUB, TO_LISTENER
from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.net.secret import VARIABLE, TransportError, generated_secret
from tests.kit.agents import meet
from tests.kit.launch import Launch
from tests.kit.peer import Peer, recording, roster_at
from tests.kit.sampling import NIGHTLY

pytestmark = pytest.mark.nightly(sample=3, of="counts")

SEED = int(os.environ.get("COUNTS_SEED") or 41)
PEERS = int(os.environ.get("PEERS") or (12 if NIGHTLY else 6))
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STEPS = 400
WITHIN_S = 240.0
TAKEN = ("another job has taken this run over", "ClaimHeld", "have refused connections: it is over, or lost")
VALUES: list[Any] = [
    None, True, -1, 0, 7, 2**53, -(2**70), 1.5, "", "a", "\ud800", "x" * 5000, [], [[]], {}, {"a": {"b": [1]}},
    [None] * 50,
]  # fmt: skip
FACTS = ("worker", "node", "generation", "step", "run", "slots", "report", "local_rank", "workers", "nodes", "number")
RAW = (b"\n" * 100, b"{}\n", b"[]\n", b"\x00\xff" * 50 + b"\n", b'{"say": 7}\n', b"[" * 3000 + b"\n", b"x" * (3 << 20))


@dataclass
class TwoNodes:
    """A run of two nodes that know one secret; it goes slowly until `hurry` is there."""

    nodes: list[Launch]
    url: Path
    secret: str
    hurry: Path
    recorded: list[bytes]

    @property
    def hub(self) -> tuple[tuple[str, int], str]:
        """Where it is written that the hub is, and what agents of the run know."""
        found = json.loads((self.url / "elastic" / "hub.json").read_text())
        return (found["host"], found["port"]), found["nonce"]

    def applied(self) -> int:
        return sum(event["event"] == "step_applied" for event in read_events(self.url))

    def goes_on(self, after: str) -> None:
        """Until two more steps are applied by somebody."""
        before = self.applied()
        self.nodes[0].wait_for(lambda: self.applied() >= before + 4, f"a step after {after}", within_s=WITHIN_S)

    def ended(self) -> bool:
        """Whether one of them has."""
        return any(node.process.poll() is not None for node in self.nodes)

    def is_together(self) -> bool:
        """Whether the newest view is of both nodes, and has applied a step."""
        events = read_events(self.url)
        newest = [event for event in events if event["event"] == "view_formed"][-1]
        return len(newest["workers"]) == 2 and any(
            event["event"] == "step_applied" and event["t"] > newest["t"] for event in events
        )


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    secret, url, hurry, recorded = generated_secret(), tmp_path / "run", tmp_path / "hurry", list[bytes]()
    of_run = ["--max-restarts=1000", *meet("1:4"), PROGRAM, url, f"--steps={STEPS}", f"--slow-until={hurry}"]
    with contextlib.ExitStack() as stack:

        def node() -> Launch:
            return stack.enter_context(Launch("elastic", ["run", *of_run], env={VARIABLE: secret}))

        run = TwoNodes([node()], url, secret, hurry, recorded)
        first = run.nodes[0]
        first.wait_for((url / "elastic" / "hub.json").exists, "a hub", within_s=WITHIN_S)
        try:
            with recording(run.hub[0][1]) as seen:
                run.nodes.append(node())
                first.wait_for(lambda: together(url), "a step of both nodes", within_s=WITHIN_S)
        except PermissionError as refused:
            pytest.skip(f"needs a user who may see what goes over the loop (root): {refused}")
        recorded.extend(seen.values())
        yield run


def together(url: Path) -> bool:
    events = read_events(url)
    applied = {event["generation"] for event in events if event["event"] == "step_applied"}
    formed = [event for event in events if event["event"] == "view_formed" and len(event["workers"]) == 2]
    return any(event["generation"] in applied for event in formed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = tmp_path_factory.mktemp("undisturbed") / "run"
    with Launch("tests.kit.programs.small", [url, f"--steps={STEPS}"]) as alone:
        alone.succeed(within_s=WITHIN_S)
    return weights(url)


def weights(url: Path) -> str:
    with Checkpointer(url) as runs:
        found = runs.read()
    assert found.step == STEPS
    return digest(found.tree["model"])


def test_a_run_trains_on_whoever_reaches_its_hub(two_nodes: TwoNodes, undisturbed: str) -> None:
    print(f"make counts PEERS={PEERS} COUNTS_SEED={SEED}", flush=True)
    run, draw, done = two_nodes, random.Random(SEED), Counter[str]()
    for _ in range(PEERS):
        for act in ACTS:
            done[act(run, draw)] += 1
        run.goes_on(f"{dict(done)}")
    run.hurry.touch()
    ends = [node.finish(within_s=WITHIN_S) for node in run.nodes]
    said = "\n".join(node.output for node in run.nodes)
    print(f"{dict(done)}; {len(run.recorded)} recorded connections, {len(said)} characters printed", flush=True)
    assert ends == [0, 0], said
    assert weights(run.url) == undisturbed
    assert run.secret not in said


@pytest.mark.skipif(not NIGHTLY, reason="at night: a node that is robbed starts its workers anew each time")
def test_a_run_goes_on_whose_nodes_names_are_stolen(two_nodes: TwoNodes, undisturbed: str) -> None:
    run, draw, done = two_nodes, random.Random(SEED), 0
    while done < PEERS and not run.ended():
        stolen_name(run, draw)
        done += 1
    run.hurry.touch()
    ends = [node.finish(within_s=WITHIN_S) for node in run.nodes]
    print(f"make counts PEERS={PEERS} COUNTS_SEED={SEED}: {done} stolen names", flush=True)
    assert 0 in ends, "\n".join(node.output for node in run.nodes)
    for node, end in zip(run.nodes, ends, strict=True):
        assert end == 0 or any(words in node.output for words in TAKEN), node.output
    assert weights(run.url) == undisturbed


def replayed(run: TwoNodes, draw: random.Random) -> str:
    """All that one connection of the second node's said, or a part of it."""
    data = draw.choice(run.recorded)
    with contextlib.suppress(OSError), socket.create_connection(run.hub[0], timeout=5) as peer:
        peer.sendall(data[: draw.choice((len(data), draw.randrange(1, len(data) + 1)))])
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    return "connections replayed"


def of_another_secret(run: TwoNodes, draw: random.Random) -> str:
    at, nonce = run.hub
    with Peer(at, draw.choice((generated_secret(), None))) as peer:
        assert not any(said.get("say") == "roster" for said in peer.joins("stranger", nonce, slots=1))
    return "clients of another secret"


def absurd(run: TwoNodes, draw: random.Random) -> str:
    """From somebody who has the secret, and has not said hello."""
    with contextlib.suppress(OSError, TransportError), Peer(run.hub[0], run.secret) as peer:
        peer.sends(draw.choice(RAW)) if draw.random() < 0.5 else peer.says(nonsense(draw, [*TO_LISTENER]))
        peer.hears()
    return "absurd strangers"


def absurd_node(run: TwoNodes, draw: random.Random) -> str:
    """From a node that has joined, without a worker."""
    at, nonce = run.hub
    with contextlib.suppress(OSError, TransportError), Peer(at, run.secret) as peer:
        peer.joins(f"absurd-{draw.randrange(3)}", nonce)
        for _ in range(30):
            peer.says(nonsense(draw, [*TO_HUB, "unheard_of"]))
        peer.sends(draw.choice(RAW))
        peer.hears()
    return "nodes that say absurd things"


def nonsense(draw: random.Random, words: list[str]) -> dict[str, Any]:
    names = (
        "worker",
        "node",
        "generation",
        "step",
        "run",
        "slots",
        "report",
        "local_rank",
        "workers",
        "nodes",
        "number",
    )
    facts = {name: draw.choice(VALUES) for name in draw.sample(names, draw.randrange(len(names)))}
    return {"say": draw.choice(words), **facts}


def stolen_name(run: TwoNodes, draw: random.Random) -> str:
    """It calls itself as a node that is there: the hub takes it for that node, whose own connection was lost.

    Whoever has the secret may end a node so: it may take itself for what is left of the run, and the storage's next
    claim ends one side, whichever. The other one goes on.
    """
    at, nonce = run.hub
    name, *_ = draw.choice(roster_at(at, run.secret, nonce))
    with Peer(at, run.secret) as peer:
        peer.joins(name, nonce, slots=draw.choice((0, 1)))
    before, deadline = run.applied(), time.monotonic() + WITHIN_S
    while not run.ended() and (run.applied() < before + 4 or not run.is_together()):
        assert time.monotonic() < deadline, "\n".join(node.output for node in run.nodes)
        time.sleep(0.1)
    return "stolen names"


ACTS: tuple[Callable[[TwoNodes, random.Random], str], ...] = (
    replayed, of_another_secret, absurd, absurd_node,
)  # fmt: skip

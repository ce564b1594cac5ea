"""Several agents: they meet, come later, are too many, and lose the one with the hub."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.kit.agents import HERE, STAY, WITHIN_S, Here, Run, meet

pytestmark = pytest.mark.nightly(sample=2, of="nodes that meet")


@pytest.mark.nightly(sample=1, of="two agents")
def test_nodes_meet_and_a_later_one_joins_without_a_restart(run: Run) -> None:
    flags = meet("1:3")
    first = run(STAY, *flags, "--nproc-per-node=2")
    Here(first).wait(2)
    second = run(STAY, *flags, "--nproc-per-node=2")
    Here(second).wait(2)
    assert len(Here(first).all()) == 2
    second.send(signal.SIGTERM)
    assert second.finish(within_s=WITHIN_S) == 0
    assert len(first.pids) >= 3
    third = run(HERE, *flags)
    assert third.process.poll() is None
    Here(third).wait(1)
    first.send(signal.SIGTERM)
    assert first.finish(within_s=WITHIN_S) == 0


@pytest.mark.nightly(sample=1, of="two agents")
def test_a_node_too_many_waits_for_a_place_and_says_by_its_status_that_none_came(run: Run) -> None:
    """An autoscaler takes 0 for success. A node starts nothing before it has a place."""
    flags = meet("1:2")
    first, second = run(STAY, *flags), run(STAY, *flags)
    for node in (first, second):
        Here(node).wait(1)
    refused = run(STAY, *flags, "--rdzv-conf=join_timeout=2")
    assert refused.finish(within_s=WITHIN_S) == 75, refused.output
    assert "the run has its 2 nodes already: this node waits for a place, 2 s at most" in refused.output
    assert "try again later (exit status 75)" in refused.output
    waits = run(STAY, *flags)
    waits.wait_for(lambda: "this node waits for a place" in waits.output, "a refusal", within_s=WITHIN_S)
    second.send(signal.SIGTERM)
    assert second.finish(within_s=WITHIN_S) == 0
    assert Here(waits).wait(1)[0][2] == 0
    for node in (waits, first):
        node.send(signal.SIGTERM)
        assert node.finish(within_s=WITHIN_S) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["is killed", "hands over"])
def test_the_hub_moves_to_the_node_that_is_left(run: Run, how: signal.Signals) -> None:
    """Twice, so that the first of two nodes goes once, and the second: one of them has the hub."""
    for goes in (0, 1):
        flags = meet("1:2")
        nodes = [run(STAY, *flags), run(STAY, *flags)]
        for node in nodes:
            Here(node).wait(1)
        nodes[goes].send(how)
        if how == signal.SIGTERM:
            assert nodes[goes].finish(within_s=WITHIN_S) == 0
        left = nodes[1 - goes]
        ((_, worker, _),) = Here(left).all()
        os.kill(worker, signal.SIGKILL)
        assert Here(left).wait(2)[1][0] == 0  # only the hub orders a replacement
        left.send(signal.SIGTERM)
        status = left.finish(within_s=WITHIN_S)
        assert status == 0 or how == signal.SIGKILL  # a hub that lost a node, and went on with nothing since, failed


def test_a_range_with_one_port_for_two_is_refused_before_anybody_relies_on_the_node(run: Run) -> None:
    """The port for its claim was sought when it became the hub: it died in the middle of a takeover, and the run lost
    a second hub to the first one's loss."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = run(STAY, *meet("1:2"), f"--port-range={port}-{port}")
    assert launch.finish(within_s=WITHIN_S) == 2, launch.output
    assert f"--port-range={port}-{port}: all addresses: no port of the range is free" in launch.output
    assert "an agent takes two ports" in launch.output


def test_a_node_alone_says_who_is_missing(run: Run) -> None:
    """A slow machine may need more than the three seconds to be at the rendezvous itself, and says that, too."""
    launch = run(STAY, *meet("2:2"), "--rdzv-conf=join_timeout=3")
    assert launch.finish(within_s=WITHIN_S) == 1
    assert "did not meet within 3 s" in launch.output
    assert "at least 2 are needed" in launch.output
    assert "1 nodes: " in launch.output or "nobody, not even this node yet" in launch.output


def test_on_the_host_that_is_named_it_is_said_that_something_else_has_the_port(run: Run) -> None:
    """It was told to start `elastic run` on that host, too."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        flags = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=join_timeout=3"]
        launch = run(STAY, *flags)
        assert launch.finish(within_s=WITHIN_S) == 1
    assert f"next   this machine is to host the store: end what listens at {endpoint} here" in launch.output

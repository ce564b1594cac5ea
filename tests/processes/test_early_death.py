"""A worker dies, which its agent hears before its process is gone, while a node leaves or the run's hub is lost.

Promises  the others go on in the same processes and end with the bits of an undisturbed run, and nothing is left; the
          report says who was lost, and of what.

The first node of a run is there alone until the second one joins: so it has the hub, and the first ranks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.environment import Overrides
from elastic.drill.faults import At, Fault, Join, Kill, KillAgent, LeaveNode, Plan
from elastic.report.report import report

pytestmark = pytest.mark.nightly(sample=1, of="early deaths")

STEPS, JOINED, STEP = 60, 3, 20
NODES: dict[str, Any] = {"workers": 2, "nodes": 1, "nodes_max": 2, "launcher": "elastic", "steps": STEPS, "seed": 7}
JOINS_AWAIT_S = 60.0  # else a busy machine's run is past STEP before the second node is there
HUB = 0  # the first rank of its node
MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]


def judged(run: Cluster, reference: End, *, all_reached: bool = True) -> End:
    end = run.finish(within_s=240, reference=reference.events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert end.left_behind == (), end.output
    assert not (all_reached and end.not_reached), end.output
    assert sum(event["event"] == "finished" for event in end.events) >= 1
    return end


def disturbed(cluster: MakeCluster, undisturbed: Undisturbed, *faults: Fault, all_reached: bool = True) -> End:
    plan = Plan((Join(At(JOINED, "forward")), *faults))
    run = cluster(plan=plan, overrides=Overrides(joins_await_s=JOINS_AWAIT_S), **NODES)
    return judged(run, undisturbed(steps=STEPS, seed=7), all_reached=all_reached)


def workers(end: End) -> list[str]:
    """By rank, once both nodes are there."""
    return next(list(event["workers"]) for event in end.events if event.get("world_size") == 4 and "workers" in event)


def lost(end: End) -> dict[str, str]:
    """And of what, as a report says it."""
    return {worker: cause for change in report(end.events).view_changes for worker, cause in change.lost.items()}


def taken_over(end: End) -> list[str]:
    """What each node said that came to be the run's hub. No event tells of it: workers write those."""
    return [line for line in end.output.splitlines() if "this node is the run's hub now, after " in line]


@pytest.mark.parametrize("phase", ["backward", "in_exchange", "applied"])
@pytest.mark.parametrize(("leaves", "dies"), [(HUB, 1), (HUB, 2), (2, 0), (2, 3)])
def test_a_worker_is_killed_while_a_node_leaves(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, leaves: int, dies: int, phase: str
) -> None:
    """Of the node that leaves, or of the other one. Where the hub's leaves, it hands over."""
    faults = LeaveNode(leaves, At(STEP, "forward")), Kill(dies, At(STEP, phase))
    end = disturbed(elastic_cluster, elastic_undisturbed, *faults)
    of_its_own_node = leaves // 2 == dies // 2
    assert end.exit_code in ({0, 1} if of_its_own_node else {0}), end.output
    # Nobody else is lost: each of the others has left or finished.
    ended = {event["worker"] for event in end.events if event["event"] in ("left", "finished")}
    assert set(workers(end)) - ended == {workers(end)[dies]}, end.output
    assert lost(end) == {workers(end)[dies]: "SIGKILL"}, end.output
    handed_over = [line for line in taken_over(end) if line.endswith(", which leaves")]
    hubs = len(handed_over), len(taken_over(end))
    # On a busy machine the run may be over before the last worker of the node that leaves has ended: it needs no hub.
    over_first = -1 < end.output.find("elastic: finished") < end.output.find("this node has left")
    assert hubs in {(int(leaves == HUB),) * 2, *([(0, 0)] if over_first else [])}, end.output


@pytest.mark.parametrize(("agent_of", "dies"), [(HUB, 2), (2, 0), (HUB, 3), (2, 1)])
def test_a_worker_is_killed_while_the_agent_of_another_node_is(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, agent_of: int, dies: int
) -> None:
    """In half of the cases it has the hub: the other agent takes over, and in its node a worker is dying.
    On a busy machine the loss of the agent may be known first, and then the worker never comes to its moment."""
    faults = KillAgent(agent_of, At(STEP, "forward")), Kill(dies, At(STEP, "backward"))
    end = disturbed(elastic_cluster, elastic_undisturbed, *faults, all_reached=False)
    assert end.exit_code == -signal.SIGKILL, end.output
    assert len(taken_over(end)) == (agent_of == HUB), end.output
    assert end.not_reached in ((), (f"step {STEP} backward: kill w{dies}",)), end.output
    node, killed = workers(end)[agent_of : agent_of + 2], [] if end.not_reached else [workers(end)[dies]]
    assert set(lost(end)) == {*node, *killed}, end.output

"""A worker dies, which its agent hears before its process is gone, while a node leaves or the run's hub is lost.

Promises  the others go on in the same processes and end with the bits of an undisturbed run, and nothing is left.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAgent, LeaveNode, Plan

STEPS, STEP = 60, 20
NODES: dict[str, Any] = {"workers": 4, "nodes": 2, "nodes_max": 3, "launcher": "elastic", "steps": STEPS, "seed": 7}
MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]


def judged(run: Cluster, reference: End) -> End:
    end = run.finish(within_s=240, reference=reference.events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.left_behind, end.not_reached) == ((), ()), end.output
    assert sum(event["event"] == "finished" for event in end.events) >= 1
    return end


@pytest.mark.nightly(sample=1, of="early deaths")
@pytest.mark.parametrize("phase", ["backward", "in_exchange", "applied"])
@pytest.mark.parametrize(("leaves", "dies"), [(0, 1), (0, 2), (2, 0), (2, 3)])
def test_a_worker_is_killed_while_a_node_leaves(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, leaves: int, dies: int, phase: str
) -> None:
    """Of the node that leaves, or of the other one; one of the two nodes has the hub, which hands over."""
    faults = (LeaveNode(leaves, At(STEP, "forward")), Kill(dies, At(STEP, phase)))
    end = judged(elastic_cluster(plan=Plan(faults), **NODES), elastic_undisturbed(steps=STEPS, seed=7))
    of_its_own_node = leaves // 2 == dies // 2
    assert end.exit_code in ({0, 1} if of_its_own_node else {0}), end.output
    # Nobody else is lost: each of the others has left or finished.
    ended = {event["worker"] for event in end.events if event["event"] in ("left", "finished")}
    first = next(event["workers"] for event in end.events if event["event"] == "view_formed")
    assert len(set(first) - ended) == 1, end.output


@pytest.mark.nightly(sample=1, of="early deaths")
@pytest.mark.parametrize(("agent_of", "dies"), [(0, 2), (2, 0), (0, 3), (2, 1)])
def test_a_worker_is_killed_while_the_agent_of_another_node_is(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, agent_of: int, dies: int
) -> None:
    """One of the two agents has the hub, so in half of the cases the other one takes over, and in it a worker is dying.
    Later in the step the loss of the agent may be known before, and the other never comes to its moment."""
    faults = (KillAgent(agent_of, At(STEP, "forward")), Kill(dies, At(STEP, "backward")))
    end = judged(elastic_cluster(plan=Plan(faults), **NODES), elastic_undisturbed(steps=STEPS, seed=7))
    assert end.exit_code == -signal.SIGKILL, end.output

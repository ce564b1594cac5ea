"""What is to be trained, and on what: what plans and simulations are given, and what follows from it at once. Pure.

A step's batch is cut into V shares, and W workers compute ceil(V / W) of them one after the other, at most. Then the
gradients are added up: inside a node first, then across nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from elastic.plan.communication import Link, exposed_s, hierarchical_s
from elastic.plan.simulation import StepTime

ADAM = 3  # copies of the parameters in a state: weights, and AdamW's two moments


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training to be planned: the model, and how many of which machines it has.

    parameters       of the model
    gradient_bytes   of a parameter's gradient, as it travels: 4 in mode "exact"
    state_bytes      of a checkpoint
    batch_s          seconds that one worker computes for a whole batch
    nodes, per_node  the most nodes, and the workers of each
    virtual_workers  V
    inside           between two workers of a node
    across           of one of a node's adapters
    adapters         of a node
    overlap          the share of computing, 0 to 1, during which gradients travel
    """

    parameters: float
    gradient_bytes: float
    state_bytes: float
    batch_s: float
    nodes: int
    per_node: int
    virtual_workers: int
    inside: Link
    across: Link
    adapters: int
    overlap: float

    @property
    def workers(self) -> int:
        """Return the most workers that can take part."""
        return min(self.nodes * self.per_node, self.virtual_workers)

    def communication_s(self, workers: int) -> float:
        """Return the seconds of the sum of a step's gradients over so many workers, on as few nodes as they need."""
        nbytes = self.parameters * self.gradient_bytes
        per_node = min(workers, self.per_node)
        nodes = ceil(workers / per_node)
        share = min(1.0, self.adapters / per_node)  # of an adapter, while all workers of a node send
        across = Link(self.across.bandwidth * share, self.across.latency_s)
        return hierarchical_s(nbytes, nodes, per_node, self.inside, across)

    def compute_s(self, workers: int) -> float:
        """Return the seconds that the worker with most shares computes in a step."""
        return ceil(self.virtual_workers / workers) * self.batch_s / self.virtual_workers

    def step_s(self, workers: int) -> float:
        compute_s = self.compute_s(workers)
        return compute_s + exposed_s(self.communication_s(workers), compute_s, self.overlap)

    @property
    def step_of_nodes_s(self) -> StepTime:
        """Return a function: of so many nodes, the seconds of a step."""
        return lambda nodes: self.step_s(min(nodes * self.per_node, self.virtual_workers))

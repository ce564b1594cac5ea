"""How long does an all-reduce take, and what of a step is left for computing? Pure: the field's cost model.

A message of b bytes from one worker to the next takes latency + b / bandwidth. A ring all-reduce of K workers sends
2 (K - 1) messages of B / K bytes one after the other: so its time is 2 (K - 1) / K * B / bandwidth + 2 (K - 1) *
latency. The hierarchical one adds up inside every node first, so that across nodes each worker sends its own piece
alone.

Valid where every worker sends at the full `bandwidth` at one time, in both directions: across nodes, of a network
adapter that G workers share each has a Gth.
Source: Patarasuk and Yuan (2009), doi:10.1016/j.jpdc.2008.09.002; Thakur, Rabenseifner and Gropp (2005),
doi:10.1177/1094342005051521.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A link between two workers. bandwidth: bytes per second, of each direction; latency_s: of one message."""

    bandwidth: float
    latency_s: float


def reduce_scatter_s(nbytes: float, workers: int, link: Link) -> float:
    """Return the seconds until each of a ring's K workers holds a Kth of the sum of `nbytes` bytes.

    These are K - 1 messages of a Kth. An all-gather back takes as long.
    """
    hops = workers - 1
    return hops / workers * nbytes / link.bandwidth + hops * link.latency_s


def ring_s(nbytes: float, workers: int, link: Link) -> float:
    """Return the seconds of a ring all-reduce of `nbytes` bytes over `workers` workers; 0 for one."""
    return 2 * reduce_scatter_s(nbytes, workers, link)


def hierarchical_s(nbytes: float, nodes: int, per_node: int, inside: Link, across: Link) -> float:
    """Return the seconds of an all-reduce that adds up inside every node first.

    It is a reduce-scatter inside, an all-reduce across nodes of each worker's piece, and an all-gather inside.
    nbytes    of the sum
    per_node  workers of a node
    across    of one worker, while all workers of its node send
    """
    within = 2 * reduce_scatter_s(nbytes, per_node, inside)
    return within + ring_s(nbytes / per_node, nodes, across)


def exposed_s(communication_s: float, compute_s: float, overlap: float) -> float:
    """Return the seconds of communication that computing does not hide.

    overlap  the share of `compute_s`, 0 to 1, during which gradients can travel: 0, none; a backward pass is two thirds
    """
    return max(0.0, communication_s - overlap * compute_s)


def efficiency(communication_s: float, compute_s: float, overlap: float = 0.0) -> float:
    """Return the share of a step, 0 to 1, that is computing."""
    return compute_s / (compute_s + exposed_s(communication_s, compute_s, overlap))

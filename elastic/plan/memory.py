"""How many bytes a worker holds of a model, beside activations, and how large a model fits. Pure.

    state  weights, and AdamW's two moments, in fp32
    sums   in exact mode: the gradients, a pass's as they come, and partial sums of a block of V / R shares, by the tree

A replica is k workers that hold one copy of all of it together; R replicas share V. That is (20 + 4 · log2(V / R)) / k
bytes a parameter and worker, and tests/processes/test_sharded_memory.py holds it to what is measured. A unit of
`fully_shard` is there whole while it is passed, up to four times, with its gradients and its messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from elastic.plan.job import ADAM, Job

_FP32 = 4


@dataclass(frozen=True)
class ReplicaMemory:
    """What a worker holds where so many workers are a replica.

    bytes_a_parameter  of the model
    model_bytes        of the planned model
    largest            how many parameters fit; None: nobody has said how much memory a worker has
    """

    replica_size: int
    bytes_a_parameter: float
    model_bytes: float
    largest: float | None


def bytes_a_parameter(virtual_workers: int, *, replicas: int, replica_size: int) -> float:
    """Return how many bytes a worker holds of each parameter, beside activations and units."""
    copies = ADAM + 2 + log2(max(1.0, virtual_workers / replicas))
    return _FP32 * copies / replica_size


def memory(job: Job, *, nodes: int, worker_bytes: float | None) -> Iterator[ReplicaMemory]:
    """Yield what workers hold, for each size of replicas that a node can be divided into.

    nodes         the fewest that the run goes on with: fewer replicas have larger blocks of shares
    worker_bytes  of a worker's memory, for state and sums
    """
    for size in (size for size in range(1, job.per_node + 1) if job.per_node % size == 0):
        replicas = min(job.virtual_workers, nodes * job.per_node // size)
        each = bytes_a_parameter(job.virtual_workers, replicas=replicas, replica_size=size)
        yield ReplicaMemory(size, each, each * job.parameters, None if worker_bytes is None else worker_bytes / each)

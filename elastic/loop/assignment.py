"""Which rank computes which shares of a step, as which batches, and in which order their sums are added.

In exact mode a rank computes its shares one by one and the tree orders every sum. In fast mode it computes
them as one batch, the gradients are summed by plain all-reduces, and the tree stands over the ranks.

Where a replica is of several ranks, it has a block of shares, as a rank has otherwise, and deals them out in rounds:
all of its ranks pass one each at a time, for in each pass they hold the model together. In fast mode there is one
round, in which each passes its own, and their sum is the replica's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from elastic.config import Config
from elastic.data.data_plan import Examples, StepPlan
from elastic.group.tree import Schedule, schedule, schedule_of_dealt


@dataclass(frozen=True)
class IdleRanks:
    """Ranks without a share in one step: they joined right before it, and receive the state while others compute."""

    step: int = -1
    ranks: frozenset[int] = frozenset()

    def at(self, step: int) -> frozenset[int]:
        """Return the ranks that have no share in `step`."""
        return self.ranks if step == self.step else frozenset()


@dataclass(frozen=True)
class Round:
    """What the ranks of a replica pass together.

    batches  of each of them, in the order of places, the shares that it passes as one batch; empty: it has none
    merges   the merges of the replica's partial sums that follow each batch that is not empty (exact), or all (fast)
    """

    batches: tuple[range, ...]
    merges: tuple[int, ...]


@dataclass(frozen=True)
class ReplicaAssignment:
    """What a replica of several ranks computes of a step, in rounds.

    schedule  the sums over all replicas
    """

    rounds: tuple[Round, ...]
    schedule: Schedule


@dataclass(frozen=True)
class ShareAssignment:
    """What one rank computes of a step.

    blocks    of all ranks
    shares    its own
    batches   its shares as they are computed: each alone (exact), or all as one (fast)
    merges    per batch, the merges of partial sums that follow it
    schedule  the sums over all ranks
    replica   what its replica computes, where that is of several ranks; None: each rank holds the whole model
    """

    blocks: tuple[range, ...]
    shares: range
    batches: tuple[range, ...]
    merges: tuple[int, ...]
    schedule: Schedule
    replica: ReplicaAssignment | None = None


def assign_shares(config: Config, shares: int, world_size: int, idle: Collection[int] = ()) -> list[ShareAssignment]:
    """Return what every rank computes of a step of `shares` non-empty shares, of which ranks in `idle` get none."""
    size, mode = config.replica_size, config.compute.mode
    if size > 1 and mode == "exact":
        return _dealt(size, config.plan.virtual_workers, shares, world_size, frozenset(idle))
    if size > 1:
        return _in_replicas(size, config.plan.virtual_workers, shares, world_size, frozenset(idle))
    return _assigned(mode, config.plan.virtual_workers, shares, world_size, frozenset(idle))


@lru_cache(maxsize=64)
def _dealt(
    size: int, virtual_workers: int, shares: int, world_size: int, idle: frozenset[int]
) -> list[ShareAssignment]:
    replicas = tuple(blocks(shares, world_size // size, {rank // size for rank in idle}))
    between = schedule(virtual_workers, shares, replicas)
    owned = tuple(
        range(min(block.start + place, block.stop), block.stop, size) for block in replicas for place in range(size)
    )
    plan = schedule_of_dealt(virtual_workers, shares, owned)
    return [
        ShareAssignment(
            owned,
            owned[rank],
            tuple(range(share, share + 1) for share in owned[rank]),
            plan.merges[rank],
            plan,
            ReplicaAssignment(tuple(_rounds(size, replicas[rank // size], between.merges[rank // size])), between),
        )
        for rank in range(world_size)
    ]


def _rounds(size: int, block: range, merges: Sequence[int]) -> Iterator[Round]:
    """Yield the rounds of a replica's shares, of which each of its ranks has at most one."""
    for at in range(0, len(block), size):
        shares = block[at : at + size]
        yield Round(tuple(shares[place : place + 1] for place in range(size)), tuple(merges[at : at + size]))


@lru_cache(maxsize=64)
def _in_replicas(
    size: int, virtual_workers: int, shares: int, world_size: int, idle: frozenset[int]
) -> list[ShareAssignment]:
    """Return what ranks compute that pass their batches in replicas, a sum of which is one leaf (fast)."""
    ranks = _assigned("fast", virtual_workers, shares, world_size, idle)
    replicas = [ranks[first].blocks[first : first + size] for first in range(0, len(ranks), size)]
    leaves = [0, *accumulate(int(any(batches)) for batches in replicas)]
    between = schedule(leaves[-1], leaves[-1], tuple(range(lo, hi) for lo, hi in pairwise(leaves)))
    rounds = [
        (Round(tuple(batches), merges),) if any(batches) else ()
        for batches, merges in zip(replicas, between.merges, strict=True)
    ]
    return [replace(one, replica=ReplicaAssignment(rounds[rank // size], between)) for rank, one in enumerate(ranks)]


@lru_cache(maxsize=64)  # it is asked for at every step, and by the loader again
def _assigned(
    mode: str, virtual_workers: int, shares: int, world_size: int, idle: frozenset[int]
) -> list[ShareAssignment]:
    blocks_of_shares = tuple(blocks(shares, world_size, idle))
    if mode == "exact":
        plan = schedule(virtual_workers, shares, blocks_of_shares)
        batches = [tuple(range(share, share + 1) for share in block) for block in blocks_of_shares]
    else:
        leaves = [0, *accumulate(int(len(block) > 0) for block in blocks_of_shares)]  # one of each rank with shares
        plan = schedule(leaves[-1], leaves[-1], tuple(range(lo, hi) for lo, hi in pairwise(leaves)))
        batches = [(block,) if block else () for block in blocks_of_shares]
    return [
        ShareAssignment(blocks_of_shares, blocks_of_shares[rank], batches[rank], plan.merges[rank], plan)
        for rank in range(world_size)
    ]


def blocks(shares: int, world_size: int, idle: Collection[int] = ()) -> list[range]:
    """Return the shares of each rank: contiguous blocks that cover 0 … shares-1 once, in rank order, near-equally.

    Blocks may be empty, and those of the ranks in `idle` are.
    """
    working = list(accumulate((rank not in idle for rank in range(world_size)), initial=0))
    edges = [before * shares // working[-1] for before in working]
    return [range(low, high) for low, high in pairwise(edges)]


def bodies(config: Config, step: StepPlan, rank: int, world_size: int) -> int:
    """Return how many batches a rank is handed in a step; without a share it gets one, which counts for nothing."""
    own = assign_shares(config, len(step.sizes), world_size)[rank]
    if own.replica is not None:
        return sum(max(pieces_in(config, step, one, own.blocks)) for one in own.replica.rounds) or 1
    return sum(pieces(config, step, shares, own.blocks) for shares in own.batches) or 1


def pieces_in(config: Config, step: StepPlan, of_round: Round, every: Sequence[range]) -> list[int]:
    """Return how many micro-batches each rank has in a round; all pass as often as the one with the most.

    every: all ranks' blocks
    """
    return [pieces(config, step, batch, every) if batch else 0 for batch in of_round.batches]


def pieces(config: Config, step: StepPlan, batch: range, every: Sequence[range]) -> int:
    """Return how many micro-batches the shares of one batch are cut into.

    As many for every rank as the largest batch needs, as StepPlan.pieces has it for shares; every: all ranks' blocks.
    """
    if config.compute.mode == "exact":
        return step.pieces(batch[0])
    size = config.plan.micro_batch_size
    if size is None:
        return 1
    largest = max(sum(step.sizes[share] for share in block) for block in every)
    return min(sum(step.sizes[share] for share in batch), -(-largest // size))


def micro_batches(config: Config, step: StepPlan, batch: range, every: Sequence[range]) -> list[Examples]:
    """Return what is read, and passed forward and back, one after the other, for the shares of one batch.

    every: all ranks' blocks
    """
    if config.compute.mode == "exact":
        return step.micro_batches(batch[0])
    whole = step.examples_of(batch)
    count = pieces(config, step, batch, every)
    return [whole[i * len(whole) // count : (i + 1) * len(whole) // count] for i in range(count)]

"""Which rank computes which shares of a step, as which batches, and in which order their sums are added.

In exact mode a rank computes its shares one by one and the tree orders every sum. In fast mode it computes
them as one batch, the gradients are summed by plain all-reduces, and the tree stands over the ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from elastic.config import Config
from elastic.data.data_plan import Examples, StepPlan
from elastic.group.tree import Schedule, schedule


@dataclass(frozen=True)
class IdleRanks:
    """Ranks without a share in one step: they joined right before it, and receive the state while others compute."""

    step: int = -1
    ranks: frozenset[int] = frozenset()

    def at(self, step: int) -> frozenset[int]:
        """Return the ranks that have no share in `step`."""
        return self.ranks if step == self.step else frozenset()


@dataclass(frozen=True)
class ShareAssignment:
    """What one rank computes of a step.

    blocks    of all ranks
    shares    its own
    batches   its shares as they are computed: each alone (exact), or all as one (fast)
    merges    per batch, the merges of partial sums that follow it
    schedule  the sums over all ranks
    """

    blocks: tuple[range, ...]
    shares: range
    batches: tuple[range, ...]
    merges: tuple[int, ...]
    schedule: Schedule


def assign_shares(config: Config, shares: int, world_size: int, idle: Collection[int] = ()) -> list[ShareAssignment]:
    """Return what every rank computes of a step of `shares` non-empty shares, of which ranks in `idle` get none."""
    return _assigned(config.compute.mode, config.plan.virtual_workers, shares, world_size, frozenset(idle))


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
    return sum(pieces(config, step, shares, own.blocks) for shares in own.batches) or 1


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

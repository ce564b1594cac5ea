"""The exchange of one step in one view: gradients, buffers and sums together, and who computes what.

In exact mode a rank computes its shares one by one and the tree orders every sum. In fast mode it computes
them as one batch, the gradients are summed by plain all-reduces, and the tree stands over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch

from elastic.config import Config
from elastic.data.plan import Examples, StepPlan, blocks
from elastic.errors import StepError
from elastic.group.buffers import Buffers
from elastic.group.form import Group
from elastic.group.gradients import UNTOUCHED, GradientSum
from elastic.group.sums import Agreed, ShareSums, StepSums
from elastic.group.tree import Schedule, schedule


@dataclass(frozen=True)
class Part:
    """One rank's part of a step.

    shares    its block
    batches   its shares as they are computed: each alone (exact), or all as one (fast)
    merges    per batch, the merges of partial sums that follow it
    schedule  the sums over all ranks
    """

    shares: range
    batches: tuple[range, ...]
    merges: tuple[int, ...]
    schedule: Schedule


def deal(config: Config, shares: int, world_size: int) -> list[Part]:
    """Every rank's part of a step of `shares` non-empty shares. Cheap: schedules are cached."""
    blocks_of_shares = blocks(shares, world_size)
    if config.mode == "exact":
        plan = schedule(config.plan.virtual_workers, shares, tuple(blocks_of_shares))
        batches = [tuple(range(share, share + 1) for share in block) for block in blocks_of_shares]
    else:
        leaves = [0, *accumulate(int(len(block) > 0) for block in blocks_of_shares)]
        plan = schedule(leaves[-1], leaves[-1], tuple(range(lo, hi) for lo, hi in pairwise(leaves)))
        batches = [(block,) if block else () for block in blocks_of_shares]
    return [Part(blocks_of_shares[rank], batches[rank], plan.merges[rank], plan) for rank in range(world_size)]


def pieces(config: Config, step: StepPlan, batch: range, world_size: int) -> int:
    """How many micro-batches the shares of one batch are cut into.

    As many for every rank as the largest batch needs, as StepPlan.pieces has it for shares.
    """
    if config.mode == "exact":
        return step.pieces(batch[0])
    size = config.plan.micro_batch_size
    if size is None:
        return 1
    largest = max(sum(step.sizes[share] for share in block) for block in blocks(len(step.sizes), world_size))
    return min(sum(step.sizes[share] for share in batch), -(-largest // size))


def micro_batches(config: Config, step: StepPlan, batch: range, world_size: int) -> list[Examples]:
    """What is read, and passed forward and back, one after the other, for the shares of one batch."""
    if config.mode == "exact":
        return step.micro_batches(batch[0])
    parts = [step.examples(share) for share in batch]
    whole = Examples(np.concatenate([p.epochs for p in parts]), np.concatenate([p.indices for p in parts]))
    count = pieces(config, step, batch, world_size)
    return [whole[i * len(whole) // count : (i + 1) * len(whole) // count] for i in range(count)]


class Exchange:
    """Everything that the ranks of a view exchange. One per view; `plan` sets it to a step."""

    def __init__(self, config: Config, group: Group) -> None:
        self._config = config
        self._group = group
        self._parameters = list(config.parameters().items())
        self._trained: tuple[bool, ...] = ()
        self.gradients: GradientSum = self._gradient_sum()
        self.buffers = Buffers(config.models, config.buffers, group, config.device)
        self._sums = StepSums(group)
        self.part: Part

    def plan(self, step: StepPlan) -> None:
        """Sets this rank's part of a step."""
        self.part = deal(self._config, len(step.sizes), self._group.world_size)[self._group.rank]

    def begin(self) -> None:
        """Starts the step, or starts it again: gradients are forgotten. Whoever gave a step up has restored buffers."""
        if self._trained != tuple(parameter.requires_grad for _, parameter in self._parameters):
            self.gradients.close()
            self.gradients = self._gradient_sum()
        self.gradients.begin(self.part.schedule)
        self.buffers.begin()

    def carry_out(
        self,
        position: tuple[int, int, int],
        shares: Sequence[ShareSums],
        *,
        count: int,
        examples: int,
        wishes: int,
    ) -> Agreed:
        """Sums everything over the ranks. Raises PeerLost, and StepError if nothing was counted anywhere."""
        self.gradients.flush()
        moving = self.buffers.moving
        self.buffers.start(moving, self.part.schedule, self.part.merges)
        agreed = self._sums.exchange(
            position,
            shares,
            count=count,
            wishes=wishes,
            buffers=self.buffers.digest(),
            newly_moving=self.buffers.newly_moving(),
            schedule=self.part.schedule,
        )
        if agreed.count == 0:
            raise StepError(
                f"step {position[1]} counted nothing on any worker, so its gradient has no divisor\n"
                f"{UNTOUCHED}  next   look at the counts given to step.backward"
            )
        self.gradients.finish(agreed.count)
        self.buffers.finish(examples, self.part.schedule)
        if list(agreed.moving) != moving:
            self.buffers.start(agreed.moving, self.part.schedule, self.part.merges)
            self.buffers.finish(examples, self.part.schedule)
        if self._config.device.type == "cuda":
            # NCCL's waits only order streams: a collective that was aborted has left anything, and says nothing.
            torch.cuda.current_stream(self._config.device).synchronize()
            self._group.check()
        return agreed

    def close(self) -> None:
        self.gradients.close()

    def _gradient_sum(self) -> GradientSum:
        self._trained = tuple(parameter.requires_grad for _, parameter in self._parameters)
        trained = [(name, parameter) for name, parameter in self._parameters if parameter.requires_grad]
        return GradientSum(
            [parameter for _, parameter in trained],
            [name for name, _ in trained],
            self._group,
            overlap=self._config.overlap,
            ordered=self._config.mode == "exact",
            bucket_bytes=self._config.bucket_bytes,
        )

"""The exchange of one step in one view: gradients, buffers and sums together, and who computes what.

In exact mode a rank computes its shares one by one and the tree orders every sum. In fast mode it computes
them as one batch, the gradients are summed by plain all-reduces, and the tree stands over the ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from elastic.config import Config
from elastic.data.plan import Examples, StepPlan, blocks
from elastic.errors import CollectiveMismatch, StepError
from elastic.group.buffers import Buffers
from elastic.group.fingerprint import Alone, Announced, Kind, announce
from elastic.group.form import Group, gather_bytes
from elastic.group.gradients import UNTOUCHED, GradientSum
from elastic.group.sums import Agreed, ShareSums, StepSums, SubtreeSums
from elastic.group.tree import Schedule, schedule
from elastic.state.attributes import Attributes
from elastic.state.trained import Trained
from elastic.state.trained_set import TrainedSet, listed


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

    gradients: GradientSum

    def __init__(self, config: Config, group: Group, trained: Trained, attributes: Attributes) -> None:
        self._config = config
        self._group = group
        self._trained = trained
        self._set: TrainedSet | None = None
        self._kept: dict[tuple[bool, ...], GradientSum] = {}
        self.buffers = Buffers(config.models, config.extra, config.buffers, group, config.device, attributes)
        self._sums = StepSums(group)
        self.part: Part
        self.announced: Announced = Alone()

    def plan(self, step: StepPlan) -> None:
        """Sets this rank's part of a step."""
        self.part = deal(self._config, len(step.sizes), self._group.world_size)[self._group.rank]

    def begin(self, step: int, *, again: bool) -> TrainedSet:
        """Starts step `step`, or starts it again: gradients are forgotten. Whoever gave it up has restored buffers.

        Raises PeerLost, and StepError for a change of what is trained that cannot be carried.
        """
        trained = self._trained.look(again=again)
        if trained is not self._set:
            self._follow(trained)
        self.announced = announce(self._group, Kind.STEP, step=step, trained=trained.digest)
        self.gradients.begin(self.part.schedule, self._meet)
        self.buffers.begin()
        return trained

    def carry_out(
        self,
        position: tuple[int, int, int],
        shares: Sequence[ShareSums],
        *,
        count: int,
        examples: int,
        wishes: int,
    ) -> Agreed:
        """Sums everything over the ranks.

        Raises PeerLost, CollectiveMismatch, and StepError if nothing was counted anywhere.
        """
        self._meet()
        self.gradients.flush()
        sums = SubtreeSums()
        for share, merges in zip(shares, self.part.merges, strict=True):
            sums.push(share, merges)
        moving = self.buffers.moving
        self.buffers.start(moving, (), self.part.schedule, self.part.merges)
        agreed = self._sums.exchange(
            position,
            sums.parts,
            count=count,
            wishes=wishes,
            buffers=self.buffers.digest(),
            newly_moving=self.buffers.newly_moving(),
            relaid=self.buffers.relaid(),
            schedule=self.part.schedule,
        )
        if agreed.count == 0:
            raise StepError(
                f"step {position[1]} counted nothing on any worker, so its gradient has no divisor\n"
                f"{UNTOUCHED}  next   look at the counts given to step.backward"
            )
        self.gradients.finish(agreed.count)
        if len({digest for digest in agreed.buffers if digest}) > 1:
            self.buffers.settle()
        self.buffers.finish(examples, self.part.schedule)
        if list(agreed.moving) != moving or agreed.relaid:
            self.buffers.start(agreed.moving, agreed.relaid, self.part.schedule, self.part.merges)
            self.buffers.finish(examples, self.part.schedule)
        self._group.settle()
        return agreed

    def close(self) -> None:
        for gradients in self._kept.values():
            gradients.close()

    def _follow(self, trained: TrainedSet) -> None:
        """Buckets and hooks are those of this set from here on."""
        before, self._set = self._set, trained
        if before is not None and not trained.same_parameters(before):
            self.close()
            self._kept = {}
        for gradients in self._kept.values():
            gradients.close()
        # Two networks that take turns are two sets; what was trained before those two is let go.
        known = self._kept.pop(trained.trained, None)
        self.gradients = known if known is not None else self._gradient_sum(trained)
        self._kept = dict([*self._kept.items()][-1:]) | {trained.trained: self.gradients}
        self.gradients.open()

    def _meet(self) -> None:
        """Before anything of the step leaves: all ranks have begun it, and train the same.

        Raises PeerLost, CollectiveMismatch.
        """
        self.announced.check()
        digests = self.announced.trained
        if len(set(digests)) <= 1:
            return
        self._group.part()  # whoever knows first raises, and hangs up
        told = gather_bytes(self._group, json.dumps(self._trained.state_dict()).encode())
        rank = self._group.rank
        other = next(other for other, digest in enumerate(digests) if digest != digests[rank])
        found = self._trained.difference(json.loads(told[other]))
        raise CollectiveMismatch(
            f"the workers train different parameters; rank {rank} is here, and rank {other} there\n"
            f"  found  {listed(found)}\n{UNTOUCHED}"
            "  next   set requires_grad and groups from what is the same on every worker: step.index, step.epoch,\n"
            "         step.sums, or what is kept in extra=; a counter of its own begins anew where a worker joins",
            doing={number: f"trains set {digest:x}" for number, digest in enumerate(digests)},
        )

    def _gradient_sum(self, trained: TrainedSet) -> GradientSum:
        names = [name for name, trains in zip(trained.names, trained.trained, strict=True) if trains]
        parameters = [p for p, trains in zip(trained.parameters, trained.trained, strict=True) if trains]
        return GradientSum(
            parameters,
            names,
            self._group,
            overlap=self._config.overlap,
            ordered=self._config.mode == "exact",
            bucket_bytes=self._config.bucket_bytes,
        )

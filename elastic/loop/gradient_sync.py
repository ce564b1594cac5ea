"""Sums one step over the ranks of a view: gradients, buffers and sums together."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from elastic.config import Config
from elastic.data.data_plan import StepPlan
from elastic.errors import UNTOUCHED, CollectiveMismatch, StepError
from elastic.group.buffers import Buffers
from elastic.group.fingerprint import Alone, Announced, Kind, announce
from elastic.group.form import Group, all_know, gather_bytes
from elastic.group.gradients import GradientSum
from elastic.group.replica_group import ReplicaGroup
from elastic.group.sharded_gradients import ShardedGradientSum, ShardedUnits
from elastic.group.sums import Agreed, ShareSums, StepSums, SubtreeSums
from elastic.group.warm_memory import WarmMemory
from elastic.loop.assignment import IdleRanks, ShareAssignment, assign_shares
from elastic.loop.replica_check import ReplicaCheck
from elastic.loop.restoring.background_transfer import BackgroundSend
from elastic.state.bits import digest_of as digest_of_tensors
from elastic.state.bits import prefixes_of_sums, sum_of_bits
from elastic.state.health import Health
from elastic.state.replica import Replica
from elastic.state.sharding import local
from elastic.state.trained import Trained
from elastic.state.trained_set import TrainedSet, listed

_NOBODY = IdleRanks()


class GradientSync:
    """Exchanges all that a step needs with the ranks of a view. One per view; `plan` sets it to a step.

    waiting  a context for what waits for other ranks in the middle of a backward pass
    across   the workers at this one's place in all replicas: all of them, where a replica is of one worker
    units, mates  of a sharded model, and of a replica of several workers
    background_send  what newcomers receive from this rank while it computes; these are `idle` in that step
    newcomers  ranks that have joined with this view
    memory   of the views before this one
    warn     tells people
    replicas  compares what the ranks hold
    """

    gradients: GradientSum | ShardedGradientSum

    def __init__(
        self,
        config: Config,
        group: Group,
        across: Group,
        trained: Trained,
        health: Health,
        waiting: Callable[[], AbstractContextManager[None]],
        memory: WarmMemory,
        replica: Replica,
        warn: Callable[[str], None],
        background_send: BackgroundSend | None = None,
        idle: IdleRanks = _NOBODY,
        newcomers: Collection[int] = (),
        units: ShardedUnits | None = None,
        mates: ReplicaGroup | None = None,
    ) -> None:
        self._across = across
        self._units = units
        self._mates = mates
        self._background_send = background_send
        self._idle = idle
        self._config = config
        self._memory = memory
        self._waiting = waiting
        self._group = group
        self._trained = trained
        self._health = health
        self._set: TrainedSet | None = None
        self._cached: dict[tuple[bool, ...], GradientSum | ShardedGradientSum] = {}
        one_share = config.plan.virtual_workers == 1
        self.buffers = Buffers(
            config.models, config.extra, config.update.buffers, group, config.device, one_share=one_share
        )
        self.replicas = ReplicaCheck(config, across, trained, replica, self.buffers, newcomers, warn)
        self._sums = StepSums(group)
        self.assignment: ShareAssignment
        self.announced: Announced = Alone()

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """Return all parameters of the models in the step that has begun, also those that it does not train."""
        assert self._set is not None
        return self._set.parameters

    def plan(self, step: StepPlan) -> None:
        """Set what this rank computes of a step."""
        idle = self._idle.at(step.index)
        assignments = assign_shares(self._config, len(step.sizes), self._group.world_size, idle)
        self.assignment = assignments[self._group.rank]

    def begin(self, step: int, *, again: bool, alone: bool = False, noted: int = 0) -> TrainedSet:
        """Start step `step`, or start it again: gradients are forgotten. Whoever gave it up has restored buffers.

        alone  without a word to the others, who may be gone: nothing of it is exchanged
        noted  digest of all weights as this worker has noted them for a resume, to be compared; 0: it has not

        Raises PeerLost, and StepError for a change of what is trained that cannot be carried.
        """
        trained = self._trained.refresh(again=again)
        if trained is not self._set:
            self._follow(trained)
        known = trained.digest ^ self._health.digest()
        if self._group.world_size > 1:
            known ^= self.replicas.digest_of_settings()
        announced = partial(announce, self._group, Kind.STEP, step=step, trained=known, waiting=self._waiting)
        # Newcomers are here when they have all: until then nothing waits for them, which a deadline would end.
        self.announced = announced() if self._background_send is None and not alone else Alone()
        self._announces = announced
        replica = self.assignment.replica
        between = self.assignment.schedule if replica is None else replica.schedule
        self.gradients.begin(between, self.meet, self._waiting, seen=any(trained.hooks))
        self.buffers.begin()
        self.replicas.begin(step, trained, noted)
        return trained

    def carry_out(
        self,
        position: tuple[int, int, int],
        shares: Sequence[ShareSums],
        *,
        count: int,
        examples: int,
        requests: int,
        unit: int = 1,
        sets_options: bool = False,
        checked: tuple[int, int] = (0, 0),
        digests: Sequence[int] | None = None,
    ) -> Agreed:
        """Sum everything over the ranks.

        unit          the gradients were weighted by so many examples each
        sets_options  the loop's bodies have set optimizers' options, which must be the same on all ranks
        checked       see CrossCheck.digests
        digests       of this rank's shares, see record/share_digests.py; None: no rank has any

        Raises PeerLost, CollectiveMismatch, and StepError if nothing was counted anywhere.
        """
        self.meet()
        self.gradients.flush()
        if sets_options:
            self.replicas.add_settings()
        sums = SubtreeSums()
        for share, merges in zip(shares, self.assignment.merges, strict=True):
            sums.push(share, merges)
        moving = self.buffers.moving
        self.buffers.start(moving, (), self.assignment.schedule, self.assignment.merges)
        agreed = self._sums.exchange(
            position,
            sums.parts,
            count=count,
            requests=requests,
            buffers=self.buffers.digest() if self._group.world_size > 1 else 0,
            newly_moving=self.buffers.newly_moving(),
            relaid=self.buffers.relaid(),
            schedule=self.assignment.schedule,
            replica=self.replicas.digest,
            checked=checked,
            shares=digests or (),
            slots=0 if digests is None else max(map(len, self.assignment.blocks)),
        )
        if len(set(self._at_this_place(agreed.replicas))) > 1:  # some rank holds something else, or is set otherwise
            self.replicas.step_began_apart()
        if agreed.left_out == examples:
            raise nothing_to_read(position[1], examples)
        if agreed.count == 0:
            raise StepError(
                f"step {position[1]} counted nothing on any worker, so its gradient has no divisor\n"
                f"{UNTOUCHED}  next   look at the counts given to step.backward"
            )
        self.gradients.finish(agreed.count if unit == 1 else agreed.count // unit)
        if len({digest for digest in agreed.buffers if digest}) > 1:  # raises, and names those that differ
            self.buffers.settle()
        self.buffers.finish(examples - agreed.left_out, self.assignment.schedule)
        if list(agreed.moving) != moving or agreed.relaid:  # some moved for the first time, or lie otherwise
            self.buffers.start(agreed.moving, agreed.relaid, self.assignment.schedule, self.assignment.merges)
            self.buffers.finish(examples - agreed.left_out, self.assignment.schedule)
        self._group.settle()
        self._memory.forget()
        return agreed

    def all_hold(self, step: int) -> None:
        """Wait for the word of each worker that it holds all of the step, and can update. Raises PeerLost.

        Where a replica is of several workers it comes last: who has all words knows that nobody needs a state of
        another one, which could not be given in the midst of a pass. Who lacks some completes the step once a peer is
        known to have had them.
        """
        if self._mates is None:
            return
        words = torch.empty(self._group.world_size, dtype=torch.int64)
        self._group.all_gather(words, torch.tensor([step])).wait()
        assert set(words.tolist()) == {step}

    def _at_this_place(self, of_ranks: Sequence[int]) -> Sequence[int]:
        """Return what is of the ranks that hold the same part of the state as this one."""
        size = self._config.replica_size
        return of_ranks[self._group.rank % size :: size]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of `parameters`."""
        assert self._set is not None
        return self._set.names

    def digest_of_gradients(self, prefixes: list[int] | None = None) -> int:
        """Return the digest of what the step has left in `.grad`."""
        return self.digest_of((parameter.grad for parameter in self.parameters), prefixes)

    def digest_of(self, tensors: Iterable[torch.Tensor | None], prefixes: list[int] | None = None) -> int:
        """Return the digest of tensors, see bits.digest_of; of sharded ones it is the same at any size of a replica.

        All of a replica's workers call it together.
        """
        if self._units is None:
            return digest_of_tensors(tensors, prefixes)
        given = [*tensors]
        sums = [torch.zeros((), dtype=torch.int64) if one is None else sum_of_bits(local(one)).cpu() for one in given]
        total = torch.stack(sums) if self._mates is None else self._mates.total(torch.stack(sums))
        if prefixes is not None:
            prefixes += prefixes_of_sums(total.tolist())
        return digest_of_tensors([total, torch.tensor([one is None for one in given])])

    def close(self, *, in_order: bool = False) -> None:
        """Release the gradients' memory, for good. in_order: nothing is in flight, so the next view may have it."""
        for gradients in self._cached.values():
            gradients.release(in_order=in_order)
        self._cached = {}

    def _follow(self, trained: TrainedSet) -> None:
        """Use the buckets and hooks of this set of parameters from here on."""
        before, self._set = self._set, trained
        if before is not None and not trained.same_parameters(before):
            self.close()
        for gradients in self._cached.values():
            gradients.close()
        # Two networks that take turns are two sets; what was trained before those two is let go.
        known = self._cached.pop(trained.trained, None)
        self.gradients = known if known is not None else self._gradient_sum(trained)
        for older in [*self._cached][:-1]:
            self._cached.pop(older).release(in_order=False)
        self._cached[trained.trained] = self.gradients
        self.gradients.open()

    def meet(self) -> None:
        """Wait, before anything of the step leaves, until all ranks have begun it.

        All train the same by the same settings, and have passed over the same. Raises PeerLost, CollectiveMismatch.
        """
        if self._background_send is not None:
            with self._waiting():
                self._background_send.finish()
            self._background_send, self.announced = None, self._announces()
        with nullcontext() if self.announced.arrived else self._waiting():
            self.announced.check()
        digests = self.announced.trained
        if len(set(digests)) <= 1:
            return
        own = {
            "trained": self._trained.state_dict(),
            "health": self._health.state_dict(),
            **self.replicas.said(),
        }
        gathered = gather_bytes(self._group, json.dumps(own).encode())
        all_know(self._group)
        rank = self._group.rank
        other = next(other for other, digest in enumerate(digests) if digest != digests[rank])
        there = json.loads(gathered[other])
        if (apart := self._health.difference(there["health"])) is not None:
            raise CollectiveMismatch(
                f"the workers judge bad steps differently: {apart} on rank {rank} and on rank {other}\n"
                "  found  their processors round a norm differently, as accept= allows, or one's memory is damaged\n"
                f"{UNTOUCHED}  next   start the same command again, on machines that are alike",
                doing={number: f"knows {digest:x}" for number, digest in enumerate(digests)},
            )
        self.replicas.check_settings([*map(json.loads, gathered)], other)
        found = self._trained.difference(there["trained"])
        raise CollectiveMismatch(
            f"the workers train different parameters; rank {rank} is here, and rank {other} there\n"
            f"  found  {listed(found)}\n{UNTOUCHED}"
            "  next   set requires_grad and groups from what is the same on every worker: step.index, step.epoch,\n"
            "         step.sums, or what is kept in extra=; a counter of its own begins anew where a worker joins",
            doing={number: f"trains set {digest:x}" for number, digest in enumerate(digests)},
        )

    def _gradient_sum(self, trained: TrainedSet) -> GradientSum | ShardedGradientSum:
        names = [name for name, trains in zip(trained.names, trained.trained, strict=True) if trains]
        parameters = [p for p, trains in zip(trained.parameters, trained.trained, strict=True) if trains]
        if self._units is not None:
            return ShardedGradientSum(
                parameters,
                names,
                self._units,
                self._across,
                self._mates,
                ordered=self._config.compute.mode == "exact",
                memory=self._memory,
            )
        return GradientSum(
            parameters,
            names,
            self._group,
            overlap=self._config.compute.overlap,
            ordered=self._config.compute.mode == "exact",
            bucket_bytes=self._config.compute.bucket_bytes,
            memory=self._memory,
        )


def nothing_to_read(step: int, examples: int) -> StepError:
    """Return the error for a step of which no example could be read."""
    return StepError(
        f"all {examples} examples of step {step} raised as they were read, so there is nothing to train it on\n"
        f'{UNTOUCHED}  next   see whether the dataset\'s storage is there: on_bad_example="skip" is for a few bad '
        'examples\n         of many; "raise" shows the first one\'s traceback'
    )

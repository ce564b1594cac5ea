"""Sums the gradients of a sharded model, unit by unit, as torch's fully_shard gives them.

    a unit's gradients of one pass, whole  ->  each member of the replica gets its chunk of every member's  ->  added to
    the replica's partial sums in the tree's order  ->  once all shares are passed, the chunks are summed over the
    replicas, between the members at one place  ->  `finish` puts the sums, divided, in `.grad`

fully_shard itself is handed NOTHING: what it accumulates in `.grad` changes no bit, and is replaced in the end. Its
interfaces for that are public (`set_custom_reduce_scatter`, `set_all_reduce_hook` for a replica of one).

A parameter that no share used has no gradient in the end, and not one of zeros: whether its own was given is seen by a
hook of the whole parameter, which a forward pass finds in its module; a unit sends NOTHING for what was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from elastic.errors import UNTOUCHED, StepError
from elastic.group.bucket_queue import Waiting, no_meeting
from elastic.group.flat_sum import NOTHING, FlatSum
from elastic.group.form import Group
from elastic.group.hierarchical_sum import tree_sum
from elastic.group.layout import summed_in
from elastic.group.replica_group import ReplicaGroup, UnitMessage
from elastic.group.tree import Schedule
from elastic.group.warm_memory import WarmMemory
from elastic.state.sharding import Sharding, Unit, is_passed_by_all

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The latter are their names before torch 2.13."""
Look = Callable[[int, torch.Tensor], None]
"""Takes a parameter's number, and its gradient."""


class ShardedUnits:
    """The units of a run's models, with what torch calls in them, for as long as the run's session.

    mates     those who pass them together with this worker
    pass_due  all of them are to make this pass
    sums      what takes their gradients; None: a backward pass is not the run's
    """

    def __init__(self, sharding: Sharding, mates: ReplicaGroup | None) -> None:
        self.sharding = sharding
        self.mates = mates
        self.pass_due = False
        self.sums: ShardedGradientSum | None = None
        self._handles: list[Any] = []
        for number, unit in enumerate(sharding.units):
            module: Any = unit.module
            module.set_gradient_divide_factor(1.0)
            module.set_reduce_scatter_unused_params(True, recurse=False)  # else a message would depend on the share
            self._handles.append(module.register_forward_pre_hook(partial(self._check_due, unit), prepend=True))
            if sharding.size > 1:
                module.set_custom_all_gather(_AllGather(self, number))
                module.set_custom_reduce_scatter(_ReduceScatter(self, number))
            else:
                module.set_all_reduce_hook(partial(self._alone, number))
            hooked: set[int] = set()
            self._handles.append(module.register_forward_pre_hook(partial(self._watch, number, unit, hooked)))

    def close(self) -> None:
        """Take no gradients any more."""
        self.sums = self.mates = None
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_due(self, unit: Unit, *_: Any) -> None:
        """Raise StepError for a pass that the others may not make."""
        if not (self.pass_due or is_passed_by_all()):
            raise StepError(
                f"a forward pass of {unit.name}, a unit of fully_shard, outside the loop's body and run.evaluate\n"
                "  found  it gathers what all workers of a replica hold, and the others may not make this pass\n"
                "  state  what was applied stays\n"
                "  next   run.evaluate(dataset, function), or a pass within the loop's body, on all workers"
            )

    def _watch(self, number: int, unit: Unit, hooked: set[int], *_: Any) -> None:
        """Register hooks of a unit's whole parameters, which are there from its first forward pass on."""
        if len(hooked) == len(unit.parameters):
            return
        for holder, name, index in unit.holders:
            whole = getattr(holder, name, None)
            if index not in hooked and whole is not None and not isinstance(whole, DTensor) and whole.requires_grad:
                hooked.add(index)
                given: Any = partial(self._given, number, index)
                self._handles.append(whole.register_post_accumulate_grad_hook(given))

    def _given(self, number: int, index: int, _: torch.Tensor) -> None:
        if self.sums is not None:
            self.sums.given_in(number, index)

    def _alone(self, number: int, output: torch.Tensor) -> None:
        """Take a unit's gradients in a replica of one."""
        if self.sums is not None and self.sums.is_open:
            self.sums.take(number, output, lambda own: own.unsqueeze(0).clone())
            output.fill_(NOTHING)


class _Message:
    """What fully_shard calls in place of a collective of its own; see torch.distributed.fsdp's `Comm`."""

    def __init__(self, units: ShardedUnits, number: int) -> None:
        self._units = units
        self._number = number

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a message."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _meet(self, message: UnitMessage) -> None:
        if self._units.mates is not None:
            self._units.mates.meet_at(self._number, message)


class _AllGather(_Message):
    """Gathers a unit's parameters as torch does, once all members are about to."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        self._meet(UnitMessage.PARAMETERS)
        return _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _ReduceScatter(_Message):
    """Takes a unit's gradients."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Take a unit's gradients of a pass of the run's; sum those of any other pass as torch does."""
        self._meet(UnitMessage.GRADIENTS)
        sums = self._units.sums
        if sums is None or not sums.is_open:
            _reduce_scatter(output_tensor, input_tensor, group=group)
            return

        def exchanged(own: torch.Tensor) -> torch.Tensor:
            if not sums.ordered:  # one row of the sums of all members
                arrived = own.new_empty(own.numel() // group.size())
                _reduce_scatter(arrived, own, group=group)
                return arrived.unsqueeze(0)
            arrived = torch.empty_like(own)
            dist.all_to_all_single(arrived, own, group=group)
            return arrived.view(group.size(), -1)

        sums.take(self._number, input_tensor, exchanged)
        output_tensor.fill_(NOTHING)


class ShardedGradientSum:
    """Sums the gradients of one set of parameters over the members of this replica, and over the replicas.

    names    of the parameters
    across   the workers at this place in all replicas
    ordered  the exact mode's tree; off, torch's own reduce-scatter within the replica, and plain all-reduces
    is_open  a backward pass of the run's is under way
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        units: ShardedUnits,
        across: Group,
        replica: ReplicaGroup | None,
        *,
        ordered: bool,
        memory: WarmMemory | None = None,
    ) -> None:
        self.names = tuple(names)
        self.ordered = ordered
        self.is_open = False
        self._parameters = tuple(parameters)
        self._units = units
        self._across = across
        self._replica = replica
        self._size = units.sharding.size
        trained = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._sums = [
            _UnitSum(unit, trained, self._size, across, memory, ordered=ordered) for unit in units.sharding.units
        ]
        self._leaves: tuple[_Leaf | None, ...] = ()
        self._piece, self._passes = 0, 1
        self._weight: float = 1
        self._pass_begins: Callable[[], None] | None = None
        self._look: Look | None = None
        self._checked = False  # that a unit's message lies as is taken for granted
        units.sums = self

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept from step to step."""
        return sum(one.total.held_bytes for one in self._sums)

    def open(self) -> None:
        """Take gradients from here on, until `close`."""
        self._units.sums = self

    def close(self) -> None:
        """Stop taking gradients."""
        if self._units.sums is self:
            self._units.sums = None

    def release(self, *, in_order: bool) -> None:
        """Close it for good; in_order: nothing is in flight, and its memory is for others from here on."""
        self.close()
        if in_order:
            for one in self._sums:
                one.total.release()

    def begin(
        self,
        schedule: Schedule,
        meet: Callable[[], None] = no_meeting,
        waiting: Waiting = nullcontext,
        *,
        seen: bool = True,
    ) -> None:
        """Start a step (or start it again): forget every gradient. schedule: over the replicas."""
        self.is_open = False
        for one in self._sums:
            one.begin(schedule)
        self.clear()

    def at_next_pass(self, function: Callable[[], None] | None) -> None:
        """Have `function` called once, as the first gradient of the next pass arrives."""
        self._pass_begins = function

    def look_at(self, look: Look | None) -> None:
        """Have `look` called with the parameter's number and its gradient, for each that a pass gives from here on.

        It is of this worker's own batch, and whole, with zeros in between: before members exchange it, each has that of
        what it has passed itself.
        """
        self._look = look

    def begin_for_nothing(self, look: Look) -> None:
        """Prepare a backward pass that counts for nothing, and have `look` called as by `look_at`."""
        self.clear()
        self._leaves, self._piece, self._passes = (), 0, 1
        self._look = look
        self._open_pass(weight=0)

    def end_for_nothing(self) -> None:
        """End such a pass."""
        self._look = None
        self.end_pass()

    def clear(self) -> None:
        """Forget what is in `.grad`."""
        for parameter in self._parameters:
            parameter.grad = None

    def begin_round(self, leaves: Sequence[tuple[int, int] | None], *, passes: int) -> None:
        """Prepare a round of passes, one of each member's shares.

        leaves  of each member, (merges, pieces) of its share, see GradientSum.begin_pass; None: it has none. Not
                ordered: of the members' sum
        passes  how many each member makes
        """
        self._leaves = tuple(None if one is None else _Leaf(*one) for one in leaves)
        self._piece, self._passes = -1, passes

    def begin_pass(
        self,
        merges: int,
        *,
        piece: int,
        pieces: int,
        last: bool,
        weight: float = 1,
        holds_back: bool = False,
        at_once: bool = False,
    ) -> None:
        """Prepare a backward pass; see GradientSum.begin_pass. weight: 0 for what counts for nothing."""
        self.clear()
        if self._size == 1 and piece == 0:
            self.begin_round([(merges, pieces)], passes=pieces)
        self._piece += 1
        self._open_pass(weight=weight)

    def _open_pass(self, *, weight: float) -> None:
        self._weight = weight
        self.is_open = True
        for one in self._sums:
            one.given.clear()
            one.taken = False

    def end_pass(self) -> None:
        """Note that a pass is over. Raises StepError where torch has laid a unit's message out in another way."""
        self.is_open = False
        if not self._checked:
            self._checked = True
            for one in self._sums:
                one.check_layout()
        self.clear()  # what fully_shard has left there is NOTHING

    def given_in(self, unit: int, index: int) -> None:
        """Note that a whole parameter has got a gradient."""
        if self._pass_begins is not None:
            begins, self._pass_begins = self._pass_begins, None
            begins()
        if self.is_open:
            self._sums[unit].given.add(index)

    def take(self, unit: int, own: torch.Tensor, exchanged: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take a unit's gradients of one pass.

        exchanged  returns (members, chunk): of every member this one's chunk
        """
        one = self._sums[unit]
        if one.taken:
            raise one.called_again()
        one.taken = True
        arrived = exchanged(one.weighted(own, self._weight, self._look))
        one.add(arrived, self._leaves, self._piece, passes=self._passes)

    def flush(self) -> None:
        """Send the chunks of all units to the other replicas. Raises PeerLost."""
        if self._replica is not None and self._sums:
            ever = self._replica.highest(torch.cat([one.ever for one in self._sums]))
            for one, of_one in zip(self._sums, torch.split(ever, [len(one.ever) for one in self._sums]), strict=True):
                one.ever = of_one
        for one in self._sums:
            one.start()
        for one in self._sums:
            one.total.join()

    def finish(self, divisor: float) -> None:
        """Wait for the sums and leave them, divided by `divisor`, in `.grad`. Raises PeerLost."""
        for one in self._sums:
            one.finish(divisor)
            self._across.settle()


class _Leaf:
    """A share of one member's, which all members add. merges, pieces: see GradientSum.begin_pass."""

    def __init__(self, merges: int, pieces: int) -> None:
        self.merges = merges
        self.pieces = pieces


class _UnitSum:
    """The sum of one unit's chunk.

    trained  the numbers of the parameters that train, by their ids
    given  the parameters that have got a gradient in the pass that is under way
    taken  its gradients have come in the pass that is under way
    ever   of each parameter that trains, whether a share of this replica's has given it one
    """

    def __init__(
        self,
        unit: Unit,
        trained: Mapping[int, int],
        members: int,
        across: Group,
        memory: WarmMemory | None,
        *,
        ordered: bool,
    ) -> None:
        self._unit = unit
        self._members = members
        self._spans: list[tuple[int, DTensor, int, int]] = []  # number, parameter, where it begins, its padded length
        self._trained = trained
        at = 0
        for number, parameter in enumerate(unit.parameters):
            if id(parameter) in trained:
                length = _chunk_of(parameter, members)
                self._spans.append((number, parameter, at, length))
                at += length
        self._chunk = at
        first = unit.parameters[0]
        dtype = summed_in(first.dtype)
        self.total: FlatSum = tree_sum(
            across, at + len(self._spans), dtype, first.to_local().device, ordered=ordered, memory=memory
        )
        self.given: set[int] = set()
        self.taken = False
        self.ever = torch.zeros(len(self._spans), dtype=torch.uint8)
        self._depth = 0
        self._pieces: list[torch.Tensor | None] = [None] * members

    def begin(self, schedule: Schedule) -> None:
        """Forget every gradient."""
        self.total.begin(schedule)
        self.ever = torch.zeros(len(self._spans), dtype=torch.uint8)
        self._depth = 0
        self._pieces = [None] * self._members

    def weighted(self, own: torch.Tensor, weight: float, look: Look | None) -> torch.Tensor:
        """Return the unit's message, weighted, with NOTHING where this pass gave none; look: gets it as it is."""
        if own.numel() != self._members * self._chunk:
            raise StepError(
                f"a unit of fully_shard sends {own.numel():,} numbers, and its module's parameters are "
                f"{self._members * self._chunk:,}\n"
                "  found  fully_shard([one, other], ...), which makes one unit of several modules\n"
                f"{UNTOUCHED}  next   fully_shard(one, ...), fully_shard(other, ...): each a unit of its own"
            )
        if look is not None:
            chunks = own.view(self._members, -1)
            for number, parameter, at, length in self._spans:
                if number in self.given:
                    look(self._trained[id(parameter)], chunks[:, at : at + length])
        if own.dtype != self.total.dtype:  # all members send alike, whatever their weights
            own = own.to(self.total.dtype)
        if weight == 0:
            return own.fill_(NOTHING)
        chunks = own.view(self._members, -1)
        for place, (number, _, at, length) in enumerate(self._spans):
            if number in self.given:
                self.ever[place] = 1
            else:
                chunks[:, at : at + length].fill_(NOTHING)
        return own if weight == 1 else own.mul_(weight)

    def add(self, arrived: torch.Tensor, leaves: Sequence[_Leaf | None], piece: int, *, passes: int) -> None:
        """Add a pass of every member's to the partial sums; of shares of several passes, as the last one comes."""
        for member, leaf in enumerate(leaves):
            if leaf is not None and passes == 1:
                self._push(arrived[member], leaf.merges)
            elif leaf is not None and piece < leaf.pieces:
                if (held := self._pieces[member]) is None:
                    self._pieces[member] = arrived[member].to(self.total.dtype, copy=True)
                else:
                    held += arrived[member]
        if passes == 1 or piece < passes - 1:
            return
        for member, leaf in enumerate(leaves):
            whole, self._pieces[member] = self._pieces[member], None
            if leaf is not None:
                assert whole is not None
                self._push(whole, leaf.merges)

    def called_again(self) -> StepError:
        """Return the error for a unit that torch gives gradients of for the second time in one pass."""
        return StepError(
            f"{self._unit.name}, a unit of fully_shard, was called more than once in one pass\n"
            "  found  its gradients come once for each call, and one process adds them up before a share counts them\n"
            f"{UNTOUCHED}  next   leave its own fully_shard out: in the unit around it, it may be called often"
        )

    def check_layout(self) -> None:
        """Raise StepError unless `.grad` lies, behind a pass, where this takes each parameter's chunk from."""
        for _, parameter, at, _ in self._spans:
            gradient: Any = parameter.grad
            if gradient is not None and gradient.to_local().storage_offset() != at:
                raise StepError(
                    "torch's fully_shard lays out the gradients of a unit otherwise than this version knows\n"
                    f"{UNTOUCHED}  next   the torch release that this one was checked with: see the README"
                )

    def start(self) -> None:
        """Send this replica's partial sums to the others."""
        if self._depth == 0:  # no share: in fast mode a row is sent all the same, which still holds an earlier step's
            for row in self.total.rows:
                row.fill_(NOTHING)
        for number, row in enumerate(self.total.rows):
            counts = row[self._chunk : self._chunk + len(self.ever)]
            counts.copy_(self.ever) if number == 0 else counts.zero_()
        self.total.start()

    def finish(self, divisor: float) -> None:
        """Put the unit's gradients in `.grad`."""
        flat = self.total.finish()
        counts = flat[self._chunk : self._chunk + len(self._spans)].tolist()
        if divisor != 1:
            flat[: self._chunk].div_(divisor)
        for (_, parameter, at, _), gave in zip(self._spans, counts, strict=True):
            if gave <= 0:
                parameter.grad = None
                continue
            held = parameter.to_local()
            part = flat[at : at + held.numel()].view(held.shape)
            parameter.grad = DTensor.from_local(
                part if part.dtype == parameter.dtype else part.to(parameter.dtype),
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )

    def _push(self, leaf: torch.Tensor, merges: int) -> None:
        """Add a share's chunk: onto the partial sum on its left, or as another one; then complete what it completes."""
        if merges:
            self._partial(self._depth - 1).add_(leaf)
            merges -= 1
        else:
            self._partial(self._depth).copy_(leaf)
            self._depth += 1
        for _ in range(merges):
            self._depth -= 1
            self._partial(self._depth - 1).add_(self._partial(self._depth))

    def _partial(self, number: int) -> torch.Tensor:
        return self.total.row(number)[: self._chunk]


def _chunk_of(parameter: DTensor, members: int) -> int:
    """Return how many elements of a parameter lie in each member's chunk, padding included, as fully_shard cuts it."""
    placement: Any = parameter.placements[0]
    length = int(parameter.shape[placement.dim])
    return -(-length // members) * (parameter.numel() // max(length, 1))

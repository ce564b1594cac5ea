"""Sums the gradients of a step's shares over all ranks, in the tree's order, while the last backward still runs.

    a share's gradients are added to the partial sums that the tree says: large ones each as it arrives, small ones
    together at the end of its backward pass  ->  in the last share, a bucket whose gradients have all arrived leaves,
    and those before it travel on  ->  `finish` puts the sums divided by the global count in `.grad`

Autograd's large tensors are added while the cache still holds them, and let go, so that their memory serves the next
ones. Of small ones calls take the time: autograd adds to the partial sum itself where nobody can look at `.grad`
meanwhile. What autograd gives is only read: it may be a view of what another parameter is given, or of a script's own
tensor (pytorch#34082).
Partial sums lie in memory that is kept from step to step, the lowest of them in the very rows that travel. What
stands there has a meaning only if some share gave it: the first gradient is copied there, and only a row that
travels is filled with NOTHING, which no sum notices, where nobody gave.

Memory: up to log2(V) + 1 copies of the gradients on a rank that holds many shares, beside what travels (treesum.py).
Steps of all schedules use the same: one that needs another partial sum adds it.
Which order the sums have is tree.py's to say, how they travel treesum.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, count
from operator import is_
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from elastic.errors import UNTOUCHED, PeerLost, StepError
from elastic.group.flat_sum import NOTHING
from elastic.group.form import Group
from elastic.group.hierarchical_sum import STAGES, tree_sum
from elastic.group.layout import Bucket, Span, buckets, dense
from elastic.group.tree import Schedule
from elastic.group.warm_memory import WarmMemory

Sums = list[torch.Tensor]
"""Per parameter its gradient's span of one partial sum, as a tensor with the parameter's shape and strides."""

_SMALL, _SMALL_TOGETHER = 1 << 16, 1 << 20  # elements


@dataclass(eq=False)
class _Partial:
    """The sum of the gradients of a subtree's shares. `gave` says of each parameter whether a share gave it one."""

    sums: Sums
    gave: bytearray


def _nothing() -> None:
    """Do nothing before the first bucket of a group that need not meet."""


class GradientSum:
    """Sums the gradients of one set of parameters over the ranks of one view.

    overlap  take each gradient as it arrives, and send buckets during the last backward pass. Off for models whose
             backward touches a parameter twice in one pass (reentrant checkpointing): then all are taken after it
    ordered  the exact mode's tree; off, plain all-reduces
    memory   of earlier views
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        group: Group,
        *,
        overlap: bool,
        ordered: bool,
        bucket_bytes: int,
        memory: WarmMemory | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._names = list(names)
        self._group = group
        self._buckets = buckets(self._parameters, bucket_bytes)
        self._totals = [
            tree_sum(group, b.numel, b.dtype, b.device, ordered=ordered, memory=memory) for b in self._buckets
        ]
        self._partials: list[_Partial] = []
        self._rows: list[_Partial] = []  # those that travel in this step
        self._stack: list[_Partial] = []
        self._way: list[_Partial] = []  # those that the present pass adds up, from right to left, in the last of them
        self._open = self._last = False
        self._waits = bytearray()  # per parameter, whether the present pass has still to take it
        self._missing: list[int] = []
        self._arrived = bytearray()
        self._sent = 0
        self._overlap = overlap
        self._weight: float = 1
        self._holds_back = False
        self._seen = False
        self._lost: PeerLost | None = None
        self._pass_begins: Callable[[], None] | None = None
        self._look: Callable[[int, torch.Tensor], None] | None = None
        self._is_open = False
        self._hooks: dict[int, RemovableHandle] = {}
        # torch's nodes that add to `.grad`. A hook of a node comes after all hooks of its parameter, whenever a script
        # registers those: they see the share's own gradient, and what they make of it counts.
        self._nodes = [_accumulating(parameter) for parameter in self._parameters] if overlap else []
        self._small = _small([parameter.numel() for parameter in self._parameters])
        self._large = [index for index in range(len(self._parameters)) if index not in self._small]
        self._bucket_of = {span.parameter: number for number, b in enumerate(self._buckets) for span in b.spans}
        self._all = b"\1" * len(self._parameters)
        self._arrivals = [self._arrival(index) for index in range(len(self._parameters))]
        self._dtypes = [self._buckets[self._bucket_of[index]].dtype for index in range(len(self._parameters))]
        self._alike = self._dtypes == [parameter.dtype for parameter in self._parameters]

    def open(self) -> None:
        """Take gradients as they arrive from here on, until `close`."""
        self.close()
        self._is_open = self._overlap
        self._listen(self._large)

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept from step to step."""
        return sum(total.held_bytes for total in self._totals)

    def close(self) -> None:
        """Stop taking gradients as they arrive."""
        self._is_open = False
        self._hear_no_more(list(self._hooks))

    def release(self, *, in_order: bool) -> None:
        """Close it for good, so that it goes when it is let go, and not when garbage is collected.

        in_order  nothing is in flight: its memory is for others from here on, and with it what lies in `.grad`
        """
        self.close()
        self._arrivals, self._meet = [], _nothing
        if in_order:
            self._partials, self._rows, self._stack, self._way = [], [], [], []
            for total in self._totals:
                total.release()

    def begin(
        self,
        schedule: Schedule,
        meet: Callable[[], None] = _nothing,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        seen: bool = True,
    ) -> None:
        """Start a step (or start it again): forget every gradient.

        meet     is called before the first bucket leaves
        waiting  a context for what waits for other ranks in the middle of a backward pass
        seen     a script's hook may look at a share's gradient as it arrives, and keep it
        """
        self._seen = seen
        self._meet = meet
        self._waiting = waiting
        for total in self._totals:
            total.begin(schedule)
        self._rows = [self._partial(index) for index in range(len(self._totals[0].rows) if self._totals else 0)]
        for partial in self._partials:
            self._empty(partial)
        self._stack, self._way = [], []
        self._open = False
        self._sent = 0
        self._lost = None
        self.clear()

    def at_next_pass(self, function: Callable[[], None] | None) -> None:
        """Have `function` called once, as the first gradient of the next pass arrives, whoever called it."""
        self._pass_begins = function
        if function is not None and self._is_open:
            self._listen(self._small)

    def look_at(self, look: Callable[[int, torch.Tensor], None] | None) -> None:
        """Have `look` called with the parameter's number and its gradient, for each that is taken from here on."""
        self._look = look

    def given(self) -> list[tuple[int, torch.Tensor]]:
        """Return (parameter's number, gradient) of what a pass that is not taken has left in `.grad`."""
        return [(number, p.grad) for number, p in enumerate(self._parameters) if p.grad is not None]

    def clear(self) -> None:
        """Forget what is in `.grad`."""
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def names(self) -> list[str]:
        """Return the parameters' names."""
        return self._names

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
        """Prepare a backward pass: the `piece`th of a share's `pieces`, then `merges` sums of the topmost two.

        last        it is this rank's last one of the step: its gradients may leave as they come
        weight      what its gradients are multiplied by: those of a mean, by how many examples it is of
        holds_back  a peer that is lost within the pass is told by `end_pass`
        at_once     nothing but the pass comes before `end_pass`, so that no script reads or clears `.grad`
        """
        self._weight, self._holds_back = weight, holds_back
        # a share of one pass, on the right of a node, needs no sum of its own: it is added to the one on its left
        onto_left = pieces == 1 and merges > 0
        if piece == 0 and not onto_left:
            self._stack.append(self._partial(len(self._stack)))
        merged = merges - onto_left if piece == pieces - 1 else 0
        self._way = self._stack[: -merged - 2 : -1]  # the topmost one, then those that it completes
        self._last = last
        self._arrived = bytearray(len(self._parameters))
        self._waits = bytearray(self._all)
        if last:
            self._missing = [len(bucket.spans) for bucket in self._buckets]
            self._listen(self._small if self._is_open else ())
        elif self._pass_begins is None and len(self._hooks) > len(self._large):
            self._hear_no_more(self._small)
        self.clear()
        if at_once and weight == 1 and not self._seen and self._look is None:
            self._let_autograd_add(self._way[0])
        self._open = True

    def end_pass(self) -> None:
        """Take what is left after a pass; later changes of `.grad` do not count. Raises PeerLost."""
        self._open = False
        if self._lost is not None:
            lost, self._lost = self._lost, None
            try:
                raise lost
            finally:
                del lost  # it holds this frame, and so the group
        self._take_rest()
        while len(self._way) > 1:
            self._empty(self._stack.pop())
            del self._way[0]
        if self._last:
            self.flush()

    def flush(self) -> None:
        """Send what has not left yet. Raises PeerLost."""
        while self._sent < len(self._buckets):
            self._send()

    def finish(self, divisor: float) -> None:
        """Wait for the sums and leave them, divided by `divisor`, in `.grad`. Raises PeerLost."""
        for later in range(STAGES - 1):
            self._advance(len(self._totals) + later)
        for total in self._totals:
            total.join()
        results = self._partial(0).sums
        for bucket, total in zip(self._buckets, self._totals, strict=True):
            flat = total.finish()
            self._group.settle()
            if divisor != 1:
                flat[: bucket.counts_at].div_(divisor)  # not the counts
            for span, rows in zip(bucket.spans, self._gave(bucket, flat), strict=True):
                if self._alike and rows > 0:
                    self._parameters[span.parameter].grad = results[span.parameter]
                    continue
                parameter, gradient = self._parameters[span.parameter], results[span.parameter]
                parameter.grad = gradient.to(parameter.dtype) if rows > 0 else None

    def _gave(self, bucket: Bucket, flat: torch.Tensor) -> Sequence[float]:
        """Return how many rows of all ranks have a sum of each parameter."""
        if self._group.world_size == 1:
            return [self._rows[0].gave[span.parameter] for span in bucket.spans]
        # read from a GPU, whose work the host then waits for; a rank alone knows it without
        gave: list[float] = flat[bucket.counts_at : bucket.numel].tolist()
        return gave

    def _listen(self, parameters: Iterable[int]) -> None:
        for index in parameters:
            if index not in self._hooks:
                self._hooks[index] = self._nodes[index].register_hook(self._arrivals[index])

    def _hear_no_more(self, parameters: Iterable[int]) -> None:
        """Remove the hooks of these parameters: each call from autograd into Python takes 3 µs."""
        for index in parameters:
            if (hook := self._hooks.pop(index, None)) is not None:
                hook.remove()

    def _arrival(self, index: int) -> Callable[..., None]:
        """Return the hook that is called as a parameter's gradient arrives."""
        bucket, small = self._bucket_of[index], index in self._small

        def arrived(*_: Any) -> None:
            if self._pass_begins is not None:
                begins, self._pass_begins = self._pass_begins, None
                begins()
            if not self._open:
                return  # a backward pass that is not ours
            if self._arrived[index]:
                raise self._second_gradient(index)
            self._arrived[index] = 1
            if not small:
                self._take((index,))
            if self._last and self._lost is None:
                self._missing[bucket] -= 1
                if not self._missing[bucket]:
                    self._send_complete()

        return arrived

    def _send_complete(self) -> None:
        """Send, within a backward pass, the buckets whose gradients have all arrived."""
        try:
            while self._sent < len(self._buckets) and self._missing[self._sent] == 0:
                self._send()
        except PeerLost as lost:
            if not self._holds_back:
                raise
            self._lost = lost.with_traceback(None)  # it holds the frames, and those the group

    def _let_autograd_add(self, partial: _Partial) -> None:
        """Have autograd add the pass's small gradients in place, to what stands in the partial sum."""
        if self._alike and partial.gave == self._all:
            for index in self._small:
                self._parameters[index].grad = partial.sums[index]

    def _take_rest(self) -> None:
        """Take the gradients that have not been taken as they arrived."""
        if self._waits == self._all and self._look is None and self._take_all():
            self._waits = bytearray(len(self._all))
        elif any(self._waits):
            self._take(compress(count(), self._waits))

    def _take_all(self) -> bool:
        """Take all parameters as `_take` does, in fewer calls.

        Returns False, and has done nothing, where some have no gradient, or one of another kind.
        """
        values = [p.grad for p in self._parameters if p.grad is not None]
        if not self._alike or not self._weight or len(values) < len(self._parameters):
            return False
        there = sum(map(is_, values, self._way[0].sums))  # what autograd has added to by itself
        mixed = 0 < there < len(values) or [value.layout for value in values].count(torch.strided) < len(values)
        if mixed or any(partial.gave != self._all and any(partial.gave) for partial in self._way):
            return False
        self.clear()
        if self._weight != 1:
            values = list(torch._foreach_mul(values, float(self._weight)))
        for partial in self._way:
            if partial.gave == self._all:
                if not there:
                    torch._foreach_add_(partial.sums, values)
                values, there = partial.sums, 0
        leftmost = self._way[-1]
        if leftmost.gave != self._all:
            torch._foreach_copy_(leftmost.sums, values)
            leftmost.gave[:] = self._all
        return True

    def _take(self, indices: Iterable[int]) -> None:
        """Add these parameters' gradients to the share's partial sum, and on to the sums that the share completes."""
        taken = list(indices)
        values: list[torch.Tensor | None] = []
        for index in taken:
            self._waits[index] = 0
            parameter = self._parameters[index]
            value, parameter.grad = parameter.grad, None
            if value is not None and value.layout is not torch.strided:
                raise self._sparse(index)
            if value is not None and self._look is not None:
                self._look(index, value)
            values.append(value if self._weight else None)  # a mean over no tokens is not a number
        weight = self._weight
        if weight != 1 and any(partial.gave[index] for partial in self._way for index in taken):
            # Rounded before it is added: in one operation with the addition it would round otherwise than a copy does.
            values = [_weighted(value, weight, self._dtypes[index]) for index, value in zip(taken, values, strict=True)]
            weight = 1
        for partial in self._way:
            values = _added(partial, taken, values)  # the sum so far goes on to the partial sum on its left
        leftmost = self._way[-1]
        into: list[torch.Tensor] = []
        out_of: list[torch.Tensor] = []
        for index, value in zip(taken, values, strict=True):
            if value is None or leftmost.gave[index]:
                continue
            leftmost.gave[index] = 1
            into.append(leftmost.sums[index])
            out_of.append(value)
        if into and weight == 1:
            torch._foreach_copy_(into, out_of)
        elif into:
            _copy_weighted(into, out_of, weight)

    def _partial(self, index: int) -> _Partial:
        """Return the partial sum of this number; the lowest ones are the rows."""
        while len(self._partials) <= index:
            sums = self._sums_in([total.row(len(self._partials)) for total in self._totals])
            self._partials.append(_Partial(sums, bytearray(len(sums))))
        return self._partials[index]

    def _empty(self, partial: _Partial) -> None:
        partial.gave[:] = bytes(len(partial.gave))

    def _send(self) -> None:
        """Complete the next bucket of this rank's rows and send it."""
        # no bucket leaves before all ranks are known to be about to do the same
        if self._sent == 0:
            self._meet()
        bucket, total = self._buckets[self._sent], self._totals[self._sent]
        self._sent += 1
        if self._open and len(self._buckets) == 1:
            self._take_rest()
        elif self._open:
            self._take([span.parameter for span in bucket.spans if self._waits[span.parameter]])
        for row, partial in enumerate(self._rows):
            gave = bytes([partial.gave[span.parameter] for span in bucket.spans])
            if not all(gave):
                for span, given in zip(bucket.spans, gave, strict=True):
                    if not given:
                        partial.sums[span.parameter].fill_(NOTHING)
            total.rows[row][bucket.counts_at : bucket.numel] = _on(bucket.device, gave)
        total.start()
        self._advance(self._sent - 1)

    def _advance(self, bucket: int) -> None:
        """Begin the next stage of buckets that left before and still travel, the same on all ranks. Raises PeerLost."""
        for total in self._totals[max(0, bucket - STAGES + 1) : bucket]:
            with nullcontext() if total.arrived else self._waiting():
                total.advance()

    def _sums_in(self, flats: Sequence[torch.Tensor]) -> Sums:
        """Return the spans of the flat tensors of all buckets, in the order of the parameters."""
        sums = {
            span.parameter: self._sum_in(flat, span)
            for bucket, flat in zip(self._buckets, flats, strict=True)
            for span in bucket.spans
        }
        return [sums[index] for index in range(len(self._parameters))]

    def _sum_in(self, flat: torch.Tensor, span: Span) -> torch.Tensor:
        """Return a span with the parameter's shape, and its strides if it is dense: as autograd lays gradients out."""
        parameter = self._parameters[span.parameter]
        if dense(parameter):
            return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset() + span.offset)
        return flat[span.offset : span.offset + span.numel].view(parameter.shape)

    def _sparse(self, index: int) -> StepError:
        return StepError(
            f"the gradient of {self._names[index]} is sparse, and sums in a fixed order need dense ones\n"
            f"{UNTOUCHED}  next   build the layer with sparse=False"
        )

    def _second_gradient(self, index: int) -> StepError:
        return StepError(
            f"a second gradient for {self._names[index]} arrived in one backward pass; the first is in a sum\n"
            "  found  reentrant checkpointing does this, and so does a backward pass inside the loss\n"
            f"{UNTOUCHED}  next   checkpoint(..., use_reentrant=False), or compute=Compute(overlap=False)"
        )


def _small(numels: Sequence[int]) -> frozenset[int]:
    """Return the parameters whose gradients wait for the end of the pass.

    They have so few elements that Python would take longer than the sum does, and together so few that they are still
    in the cache.
    """
    small: set[int] = set()
    together = 0
    for numel, index in sorted((numel, index) for index, numel in enumerate(numels)):
        together += numel
        if numel > _SMALL or together > _SMALL_TOGETHER:
            break
        small.add(index)
    return frozenset(small)


def _added(
    partial: _Partial, indices: Sequence[int], values: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Add values to what stands in the partial sum, and return the sums; where nothing does, the values."""
    into: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    sums: list[torch.Tensor | None] = []
    for index, value in zip(indices, values, strict=True):
        if not partial.gave[index]:
            sums.append(value)
            continue
        partial_sum = partial.sums[index]
        if value is not None and value is not partial_sum:
            into.append(partial_sum)
            added.append(value)
        sums.append(partial_sum)
    if into:
        torch._foreach_add_(into, added)
    return sums


def _weighted(value: torch.Tensor | None, weight: float, dtype: torch.dtype) -> torch.Tensor | None:
    if value is None:
        return None
    return value.mul(weight) if value.dtype == dtype else value.to(dtype).mul_(weight)


@torch.no_grad()
def _copy_weighted(into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor], weight: float) -> None:
    """Copy with a weight, in one pass over memory where types are the same: 0.2 ms for 4 MB, not 0.5 to 1.0."""
    for to, value in zip(into, out_of, strict=True):
        if value.dtype == to.dtype:
            torch.mul(value, weight, out=to)
        else:
            to.copy_(value).mul_(weight)


@lru_cache(maxsize=256)
def _on(device: torch.device, values: bytes) -> torch.Tensor:
    """Return small numbers on a device. Kept, for each copy to a GPU would wait until all before it is computed."""
    return torch.tensor(list(values), device=device)


def _accumulating(parameter: torch.Tensor) -> Node:
    """Return the node that adds to the parameter's `.grad`: it stays the same one as long as somebody holds it."""
    with torch.enable_grad():
        above = parameter.expand_as(parameter).grad_fn
    assert above is not None
    node: Node = above.next_functions[0][0]  # type: ignore[assignment]
    return node

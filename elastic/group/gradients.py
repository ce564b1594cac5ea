"""Sums the gradients of a step's shares over all ranks, in the tree's order, while the last backward still runs.

    a gradient arrives  ->  is added to the partial sums that the tree says, at once  ->  in the last share, a
    bucket whose gradients have all arrived leaves, and those before it travel on  ->  `finish` puts the sums divided by
    the global count in `.grad`

Autograd's tensor is added while the cache still holds it, and let go, so that its memory serves the next one.
Partial sums lie in memory that is kept from step to step, the lowest of them in the very rows that travel. What
stands in a slot has a meaning only if some share gave it: the first gradient is copied there, and only a row that
travels is filled with NOTHING, which no sum notices, where nobody gave.

Memory: up to log2(V) + 1 copies of the gradients on a rank that holds many shares, beside what travels (treesum.py).
Steps of all schedules use the same: one that needs another partial sum adds it.
Which order the sums have is tree.py's to say, how they travel treesum.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from elastic.errors import UNTOUCHED, PeerLost, StepError
from elastic.group.form import Group
from elastic.group.hierarchical_sum import STAGES, tree_sum
from elastic.group.layout import Slot, buckets, dense
from elastic.group.tree import Schedule
from elastic.group.treesum import NOTHING
from elastic.group.warm_memory import WarmMemory

Slots = list[torch.Tensor]
"""Per parameter the place of its gradient in one partial sum, with the parameter's shape and strides."""


@dataclass(eq=False)
class _Partial:
    """The sum of the gradients of a subtree's shares. `gave` says of each parameter whether a share gave it one."""

    slots: Slots
    gave: bytearray


class GradientSum:
    """The gradients of one set of parameters in one view.

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
        self._rows: list[_Partial] = []  # of these, those that travel in this step
        self._stack: list[_Partial] = []
        self._way: list[_Partial] = []  # those that the present pass adds up, from right to left, in the last of them
        self._open = self._last = False
        self._arrived = bytearray()
        self._missing: list[int] = []
        self._sent = 0
        self._overlap = overlap
        self._weight = 1
        self._holds_back = False
        self._lost: PeerLost | None = None
        self._pass_begins: Callable[[], None] | None = None
        self._hooks: list[RemovableHandle] = []
        # torch's nodes that add to `.grad`. A hook of a node comes after all hooks of its parameter, whenever a script
        # registers those: they see the share's own gradient, and what they make of it counts.
        self._nodes = [_accumulating(parameter) for parameter in self._parameters] if overlap else []

    def open(self) -> None:
        """From here on gradients are taken as they arrive, until `close`."""
        self.close()
        for number, bucket in enumerate(self._buckets if self._overlap else ()):
            for slot in bucket.slots:
                hook = self._nodes[slot.parameter].register_hook(self._arrival(slot.parameter, number))
                self._hooks.append(hook)

    @property
    def held_bytes(self) -> int:
        """What is kept from step to step."""
        return sum(total.held_bytes for total in self._totals)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def release(self) -> None:
        """After `close`: its memory is for others from here on, and with it what lies in `.grad`."""
        self._partials, self._rows, self._stack, self._way = [], [], [], []
        for total in self._totals:
            total.release()

    def begin(
        self,
        schedule: Schedule,
        meet: Callable[[], None] = lambda: None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Starts a step (or starts it again): forgets every gradient.

        meet     is called before the first bucket leaves
        waiting  a context for what waits for other ranks in the middle of a backward pass
        """
        self._meet = meet
        self._waiting = waiting
        for total in self._totals:
            total.begin(schedule)
        self._rows = [self._partial(index) for index in range(len(self._totals[0].rows) if self._totals else 0)]
        for partial in self._partials:
            partial.gave[:] = bytes(len(partial.gave))
        self._stack = []
        self._open = False
        self._sent = 0
        self._lost = None
        self._clear()

    def at_next_pass(self, function: Callable[[], None] | None) -> None:
        """Has `function` called once, as the first gradient of the next backward pass arrives, whoever called it."""
        self._pass_begins = function

    def begin_pass(
        self, merges: int, *, piece: int, pieces: int, last: bool, weight: int = 1, holds_back: bool = False
    ) -> None:
        """Before a backward pass: the `piece`th of a share's `pieces`, followed by `merges` sums of the topmost two.

        last        it is this rank's last one of the step: its gradients may leave as they come
        weight      its gradients count so many times: those of a mean over so many examples
        holds_back  a peer that is lost within the pass is told by `end_pass`
        """
        self._weight, self._holds_back = weight, holds_back
        onto_left = pieces == 1 and merges > 0
        if piece == 0 and not onto_left:
            self._stack.append(self._next())
        left = merges - onto_left if piece == pieces - 1 else 0
        self._way = self._stack[: -left - 2 : -1]
        self._last = last
        self._arrived = bytearray(len(self._parameters))
        self._missing = [len(bucket.slots) for bucket in self._buckets]
        self._clear()
        self._open = True

    def end_pass(self) -> None:
        """After it: takes what is left; what happens to `.grad` from here on does not count. Raises PeerLost."""
        self._open = False
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost
        for index, arrived in enumerate(self._arrived):
            if not arrived:
                self._take(index, self._parameters[index])
        del self._stack[len(self._stack) - len(self._way) + 1 :]
        if self._last:
            self.flush()

    def flush(self) -> None:
        """Sends what has not left yet. Raises PeerLost."""
        while self._sent < len(self._buckets):
            self._send()

    def finish(self, count: int) -> None:
        """Waits for the sums and leaves them, divided by `count`, in `.grad`. Raises PeerLost."""
        for later in range(STAGES - 1):
            self._advance(len(self._totals) + later)
        for total in self._totals:
            total.join()
        results = self._partial(0).slots
        for bucket, total in zip(self._buckets, self._totals, strict=True):
            flat = total.finish()
            self._group.settle()
            gave = flat[bucket.counts_at : bucket.numel].tolist()
            flat[: bucket.counts_at].div_(count)
            for slot, rows in zip(bucket.slots, gave, strict=True):
                parameter, gradient = self._parameters[slot.parameter], results[slot.parameter]
                parameter.grad = gradient.to(parameter.dtype) if rows > 0 else None

    def _arrival(self, index: int, bucket: int) -> Callable[..., None]:
        parameter = self._parameters[index]

        def arrived(*_: Any) -> None:
            if self._pass_begins is not None:
                begins, self._pass_begins = self._pass_begins, None
                begins()
            if not self._open:
                return  # a backward pass that is not ours
            if self._arrived[index]:
                raise self._second_gradient(index)
            self._arrived[index] = 1
            self._take(index, parameter)
            if self._last and self._lost is None:
                self._missing[bucket] -= 1
                self._send_complete()

        return arrived

    def _send_complete(self) -> None:
        """Within a backward pass: the buckets whose gradients have all arrived."""
        try:
            while self._sent < len(self._buckets) and self._missing[self._sent] == 0:
                self._send()
        except PeerLost as lost:
            if not self._holds_back:
                raise
            self._lost = lost.with_traceback(None)  # it holds the frames, and those the group

    def _take(self, index: int, parameter: torch.Tensor) -> None:
        """Adds a parameter's gradient, if it has one, to the share's partial sum, and that to those on its left that
        the share completes: each in place, while the one on its right is hot."""
        value, parameter.grad = parameter.grad, None
        if value is not None and value.layout is not torch.strided:
            raise StepError(
                f"the gradient of {self._names[index]} is sparse, and sums in a fixed order need dense ones\n"
                f"{UNTOUCHED}  next   build the layer with sparse=False"
            )
        if value is not None and self._weight != 1:
            value = _weighted(value, self._weight, self._way[-1].slots[index].dtype)
        for partial in self._way:
            if partial.gave[index]:
                slot = partial.slots[index]
                value = slot if value is None else slot.add_(value)
        leftmost = self._way[-1]
        if value is not None and not leftmost.gave[index]:
            leftmost.slots[index].copy_(value)
            leftmost.gave[index] = 1

    def _next(self) -> _Partial:
        """The memory for one more partial sum on the stack: the lowest ones are the rows."""
        partial = self._partial(len(self._stack))
        partial.gave[:] = bytes(len(partial.gave))
        return partial

    def _partial(self, index: int) -> _Partial:
        while len(self._partials) <= index:
            slots = self._placed([total.row(len(self._partials)) for total in self._totals])
            self._partials.append(_Partial(slots, bytearray(len(slots))))
        return self._partials[index]

    def _send(self) -> None:
        """Completes the next bucket of this rank's rows and sends it."""
        if self._sent == 0:
            self._meet()
        bucket, total = self._buckets[self._sent], self._totals[self._sent]
        self._sent += 1
        for row, partial in enumerate(self._rows):
            gave = bytes(partial.gave[slot.parameter] for slot in bucket.slots)
            for slot, given in zip(bucket.slots, gave, strict=True):
                if not given:
                    partial.slots[slot.parameter].fill_(NOTHING)
            total.rows[row][bucket.counts_at : bucket.numel] = _on(bucket.device, gave)
        total.start()
        self._advance(self._sent - 1)

    def _advance(self, bucket: int) -> None:
        """As a bucket leaves, those that left before it, and still travel, begin their next stage: the same ones on all
        ranks. Raises PeerLost."""
        for total in self._totals[max(0, bucket - STAGES + 1) : bucket]:
            with nullcontext() if total.arrived else self._waiting():
                total.advance()

    def _placed(self, flats: Sequence[torch.Tensor]) -> Slots:
        """The slots in the flat tensors of all buckets."""
        places = {
            slot.parameter: self._place(flat, slot)
            for bucket, flat in zip(self._buckets, flats, strict=True)
            for slot in bucket.slots
        }
        return [places[index] for index in range(len(self._parameters))]

    def _place(self, flat: torch.Tensor, slot: Slot) -> torch.Tensor:
        """A slot with the parameter's shape, and its strides where it is dense: as autograd lays gradients out."""
        parameter = self._parameters[slot.parameter]
        if dense(parameter):
            return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset() + slot.offset)
        return flat[slot.offset : slot.offset + slot.numel].view(parameter.shape)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _second_gradient(self, index: int) -> StepError:
        return StepError(
            f"a second gradient for {self._names[index]} arrived in one backward pass; the first is in a sum\n"
            "  found  reentrant checkpointing does this, and so does a backward pass inside the loss\n"
            f"{UNTOUCHED}  next   checkpoint(..., use_reentrant=False), or Run(overlap=False)"
        )


def _weighted(value: torch.Tensor, weight: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Rounded before it is added: in one operation with the addition it would round otherwise than a copy does.

    What counts for nothing is nothing: a mean over no tokens is not a number.
    """
    if weight == 0:
        return None
    return value.mul_(weight) if value.dtype == dtype else value.to(dtype).mul_(weight)


@lru_cache(maxsize=256)
def _on(device: torch.device, values: bytes) -> torch.Tensor:
    """Small numbers on a device. Kept, for each copy to a GPU would wait there until all before it is computed."""
    return torch.tensor(list(values), device=device)


def _accumulating(parameter: torch.Tensor) -> Node:
    """The node that adds to the parameter's `.grad`: it stays the same one as long as somebody holds it."""
    with torch.enable_grad():
        above = parameter.expand_as(parameter).grad_fn
    assert above is not None
    node: Node = above.next_functions[0][0]  # type: ignore[assignment]
    return node

"""Sums the gradients of a step's shares over all ranks, in the tree's order, while the last backward still runs.

    a share's gradients are added to the partial sums that the tree says: large ones each as it arrives, small ones
    together at the end of its backward pass  ->  in the last share, a bucket whose gradients have all arrived leaves,
    and those before it travel on  ->  `finish` puts the sums divided by the global count in `.grad`

Autograd's large tensors are added while the cache still holds them, and let go, so that their memory serves the next
ones. Of small ones calls take the time: autograd adds to the partial sum itself where nobody can look at `.grad`
meanwhile. What autograd gives is only read: it may be a view of what another parameter is given, or of a script's own
tensor (pytorch#34082).

Which order the sums have is tree.py's to say, what a rank adds partial_sums.py's, when buckets leave bucket_queue.py's,
and how they travel treesum.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import compress, count
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from elastic.errors import UNTOUCHED, PeerLost, StepError
from elastic.group.bucket_queue import BucketQueue, Waiting, no_meeting
from elastic.group.flat_sum import FlatSum
from elastic.group.form import Group
from elastic.group.layout import Bucket, Layout
from elastic.group.partial_sums import PartialSums
from elastic.group.tree import Schedule
from elastic.group.warm_memory import WarmMemory


@dataclass(eq=False)
class _Pass:
    """A backward pass: what it is, and what of it was taken.

    waits    per parameter, whether it is still to be taken
    arrived  likewise, whether it has arrived
    open     what arrives is its own
    lost     the peer that it met as lost, which `end_pass` tells
    """

    waits: bytearray
    arrived: bytearray
    last: bool = False
    weight: float = 1
    holds_back: bool = False
    open: bool = True
    lost: PeerLost | None = None


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
        self._group = group
        self._layout = Layout.of(parameters, names, bucket_bytes)
        self._queue = BucketQueue(self._layout, group, ordered=ordered, memory=memory)
        self._sums = PartialSums(self._layout, self._queue.totals)
        self._hooks = _Hooks(self._layout.parameters if overlap else (), self._arrival)
        self._pass = _Pass(bytearray(), bytearray(), open=False)
        self._overlap = overlap
        self._seen = self._is_open = False
        self._pass_begins: Callable[[], None] | None = None
        self._look: Callable[[int, torch.Tensor], None] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters' names."""
        return self._layout.names

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept from step to step."""
        return sum(total.held_bytes for total in self._queue.totals)

    def open(self) -> None:
        """Take gradients as they arrive from here on, until `close`."""
        self.close()
        self._is_open = self._overlap
        if self._is_open:
            self._hooks.add(self._layout.large)

    def close(self) -> None:
        """Stop taking gradients as they arrive."""
        self._is_open = False
        self._hooks.remove()

    def release(self, *, in_order: bool) -> None:
        """Close it for good, so that it goes when it is let go, and not when garbage is collected.

        in_order  nothing is in flight: its memory is for others from here on, and with it what lies in `.grad`
        """
        self.close()
        self._hooks.arrivals.clear()
        self._queue.release(in_order=in_order)
        if in_order:
            self._sums.release()

    def begin(
        self,
        schedule: Schedule,
        meet: Callable[[], None] = no_meeting,
        waiting: Waiting = nullcontext,
        *,
        seen: bool = True,
    ) -> None:
        """Start a step (or start it again): forget every gradient.

        meet     is called before the first bucket leaves
        waiting  a context for what waits for other ranks in the middle of a backward pass
        seen     a script's hook may look at a share's gradient as it arrives, and keep it
        """
        self._seen = seen
        self._queue.begin(schedule, meet, waiting)
        self._sums.begin()
        self._pass.open = False
        self._pass.lost = None
        self.clear()

    def at_next_pass(self, function: Callable[[], None] | None) -> None:
        """Have `function` called once, as the first gradient of the next pass arrives, whoever called it."""
        self._pass_begins = function
        if function is not None and self._is_open:
            self._hooks.add(self._layout.small)

    def look_at(self, look: Callable[[int, torch.Tensor], None] | None) -> None:
        """Have `look` called with the parameter's number and its gradient, for each that is taken from here on."""
        self._look = look

    def begin_for_nothing(self, look: Callable[[int, torch.Tensor], None]) -> None:
        """Prepare a backward pass that counts for nothing, and have `look` called with what it gives."""
        self.clear()
        self._look = look

    def end_for_nothing(self) -> None:
        """Show what the pass has left in `.grad`, and let it go."""
        assert self._look is not None
        for number, parameter in enumerate(self._layout.parameters):
            if parameter.grad is not None:
                self._look(number, parameter.grad)
        self._look = None
        self.clear()

    def clear(self) -> None:
        """Forget what is in `.grad`."""
        for parameter in self._layout.parameters:
            parameter.grad = None

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
        layout = self._layout
        self._sums.begin_pass(merges, piece=piece, pieces=pieces)
        if last:
            self._queue.begin_last_pass()
            self._hooks.add(layout.small if self._is_open else ())
        elif self._pass_begins is None and len(self._hooks) > len(layout.large):
            self._hooks.remove(layout.small)
        self.clear()
        if at_once and weight == 1 and not self._seen and self._look is None:
            self._let_autograd_add()
        self._pass = _Pass(bytearray(layout.every), bytearray(len(layout.every)), last, weight, holds_back)

    def end_pass(self) -> None:
        """Take what is left after a pass; later changes of `.grad` do not count. Raises PeerLost."""
        self._pass.open = False
        if self._pass.lost is not None:
            lost, self._pass.lost = self._pass.lost, None
            try:
                raise lost
            finally:
                del lost  # it holds this frame, and so the group
        self._take_rest()
        self._sums.end_pass()
        if self._pass.last:
            self.flush()

    def flush(self) -> None:
        """Send what has not left yet. Raises PeerLost."""
        self._queue.flush(self._complete)

    def finish(self, divisor: float) -> None:
        """Wait for the sums and leave them, divided by `divisor`, in `.grad`. Raises PeerLost."""
        layout, results = self._layout, self._sums.result()
        self._queue.join()
        for bucket, total in zip(layout.buckets, self._queue.totals, strict=True):
            flat = total.finish()
            self._group.settle()
            if divisor != 1:
                flat[: bucket.counts_at].div_(divisor)  # not the counts
            for span, rows in zip(bucket.spans, self._gave(bucket, flat), strict=True):
                parameter, gradient = layout.parameters[span.parameter], results[span.parameter]
                if layout.alike and rows > 0:
                    parameter.grad = gradient
                else:
                    parameter.grad = gradient.to(parameter.dtype) if rows > 0 else None

    def _gave(self, bucket: Bucket, flat: torch.Tensor) -> Sequence[float]:
        """Return how many rows of all ranks have a sum of each parameter."""
        if self._group.world_size == 1:
            return [self._sums.rows[0].gave[span.parameter] for span in bucket.spans]
        # read from a GPU, whose work the host then waits for; a rank alone knows it without
        gave: list[float] = flat[bucket.counts_at : bucket.numel].tolist()
        return gave

    def _arrival(self, index: int) -> Callable[..., None]:
        """Return the hook that is called as a parameter's gradient arrives."""
        small, queue = index in self._layout.small, self._queue

        def arrived(*_: Any) -> None:
            if self._pass_begins is not None:
                begins, self._pass_begins = self._pass_begins, None
                begins()
            current = self._pass
            if not current.open:
                return  # a backward pass that is not ours
            if current.arrived[index]:
                raise self._second_gradient(index)
            current.arrived[index] = 1
            if not small:
                self._take((index,))
            if current.last and current.lost is None and queue.completes(index):
                self._send_complete()

        return arrived

    def _send_complete(self) -> None:
        """Send, within a backward pass, the buckets whose gradients have all arrived."""
        try:
            self._queue.send_complete(self._complete)
        except PeerLost as lost:
            if not self._pass.holds_back:
                raise
            self._pass.lost = lost.with_traceback(None)  # it holds the frames, and those the group

    def _complete(self, bucket: Bucket, total: FlatSum) -> None:
        """Take what is left of a bucket's gradients, and complete this rank's rows of it."""
        if self._pass.open and len(self._layout.buckets) == 1:
            self._take_rest()
        elif self._pass.open:
            self._take([span.parameter for span in bucket.spans if self._pass.waits[span.parameter]])
        self._sums.complete_rows(bucket, total)

    def _let_autograd_add(self) -> None:
        """Have autograd add the pass's small gradients in place, to what stands in the partial sum."""
        layout, partial = self._layout, self._sums.way[0]
        if layout.alike and partial.gave == layout.every:
            for index in layout.small:
                layout.parameters[index].grad = partial.sums[index]

    def _take_rest(self) -> None:
        """Take the gradients that have not been taken as they arrived."""
        waits = self._pass.waits
        if waits == self._layout.every and self._look is None and self._take_all():
            self._pass.waits = bytearray(len(waits))
        elif any(waits):
            self._take(compress(count(), waits))

    def _take_all(self) -> bool:
        """Take all parameters as `_take` does, in fewer calls; return False where that cannot be."""
        layout = self._layout
        values = [p.grad for p in layout.parameters if p.grad is not None]
        if not layout.alike or not self._pass.weight or len(values) < len(layout.parameters):
            return False
        if not self._sums.add_all(values, self._pass.weight):
            return False
        self.clear()
        return True

    def _take(self, indices: Iterable[int]) -> None:
        """Take these parameters' gradients from `.grad`, and add them to the partial sums."""
        taken, current, parameters = list(indices), self._pass, self._layout.parameters
        values: list[torch.Tensor | None] = []
        for index in taken:
            current.waits[index] = 0
            parameter = parameters[index]
            value, parameter.grad = parameter.grad, None
            if value is not None and value.layout is not torch.strided:
                raise self._sparse(index)
            if value is not None and self._look is not None:
                self._look(index, value)
            values.append(value if current.weight else None)  # a mean over no tokens is not a number
        self._sums.add(taken, values, current.weight)

    def _sparse(self, index: int) -> StepError:
        return StepError(
            f"the gradient of {self.names[index]} is sparse, and sums in a fixed order need dense ones\n"
            f"{UNTOUCHED}  next   build the layer with sparse=False"
        )

    def _second_gradient(self, index: int) -> StepError:
        return StepError(
            f"a second gradient for {self.names[index]} arrived in one backward pass; the first is in a sum\n"
            "  found  reentrant checkpointing does this, and so does a backward pass inside the loss\n"
            f"{UNTOUCHED}  next   checkpoint(..., use_reentrant=False), or compute=Compute(overlap=False)"
        )


class _Hooks:
    """Hooks of torch's nodes that add to `.grad`, which are called as a parameter's gradient arrives.

    A hook of a node comes after all hooks of its parameter, whenever a script registers those: they see the share's
    own gradient, and what they make of it counts.

    arrivals  per parameter, what is called
    """

    def __init__(self, parameters: Sequence[torch.Tensor], arrival: Callable[[int], Callable[..., None]]) -> None:
        self._nodes = [_accumulating(parameter) for parameter in parameters]
        self._handles: dict[int, RemovableHandle] = {}
        self.arrivals = [arrival(index) for index in range(len(parameters))]

    def __len__(self) -> int:
        return len(self._handles)

    def add(self, parameters: Iterable[int]) -> None:
        """Hear of the gradients of these from here on."""
        for index in parameters:
            if index not in self._handles:
                self._handles[index] = self._nodes[index].register_hook(self.arrivals[index])

    def remove(self, parameters: Iterable[int] | None = None) -> None:
        """Hear no more of these, or of any: each call from autograd into Python takes 3 µs."""
        for index in list(self._handles) if parameters is None else parameters:
            if (handle := self._handles.pop(index, None)) is not None:
                handle.remove()


def _accumulating(parameter: torch.Tensor) -> Node:
    """Return the node that adds to the parameter's `.grad`: it stays the same one as long as somebody holds it."""
    with torch.enable_grad():
        above = parameter.expand_as(parameter).grad_fn
    assert above is not None
    node: Node = above.next_functions[0][0]  # type: ignore[assignment]
    return node

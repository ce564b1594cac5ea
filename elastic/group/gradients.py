"""Sums the gradients of a step's shares over all ranks, in the tree's order, while the last backward still runs.

    share's backward -> its gradients go on a stack, and partial sums merge as the tree says -> the last
    share's gradients complete bucket after bucket, each of which leaves at once -> `finish` puts the sums
    divided by the global count in `.grad`

Memory: a copy of the gradients per entry of the stack, at most log2(V) + 1 of them, beside the buckets.
Which order the sums have is tree.py's to say, how they travel treesum.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from elastic.errors import StepError
from elastic.group.form import Group
from elastic.group.layout import Slot, buckets, dense, summed_in
from elastic.group.tree import Schedule
from elastic.group.treesum import NOTHING, TreeSum

UNTOUCHED = "  state  nothing was applied; the model is as it was before this step\n"

Partial = tuple["list[torch.Tensor | None]", "list[int]"]
"""Per parameter, the sum of its gradients over a subtree's shares (None: no share gave one), and how many gave one."""


class GradientSum:
    """The gradients of one set of parameters in one view.

    overlap  send buckets during the last backward pass. Off for models whose backward touches a
             parameter twice in one pass (reentrant checkpointing)
    ordered  the exact mode's tree; off, plain all-reduces
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
    ) -> None:
        self._parameters = list(parameters)
        self._names = list(names)
        self._group = group
        self._ordered = ordered
        self._buckets = buckets(self._parameters, bucket_bytes)
        self._bucket_of = {slot.parameter: number for number, b in enumerate(self._buckets) for slot in b.slots}
        self._narrow = [summed_in(parameter.dtype) is not parameter.dtype for parameter in self._parameters]
        self._dense = [dense(parameter) for parameter in self._parameters]
        self._sums: dict[Schedule, list[TreeSum]] = {}
        self._current: list[TreeSum] = []
        self._stack: list[Partial] = []
        self._earlier: list[torch.Tensor | None] | None = None
        self._last_merges: int | None = None
        self._sent = 0
        self._armed = False
        self._arrived = bytearray()
        self._missing: list[int] = []
        self._hooks: list[RemovableHandle] = []
        if overlap and group.world_size > 1:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(self._arrival(index))  # type: ignore[no-untyped-call]
                for index, parameter in enumerate(self._parameters)
            ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self, schedule: Schedule) -> None:
        """Starts a step (or starts it again): forgets every gradient."""
        self._stack.clear()
        self._earlier = None
        self._last_merges = None
        self._sent = 0
        self._armed = False
        self._clear()
        if schedule not in self._sums:
            self._sums[schedule] = [
                TreeSum(self._group, schedule, b.numel, b.dtype, b.device, ordered=self._ordered) for b in self._buckets
            ]
        self._current = self._sums[schedule]

    def arm(self, merges: int) -> None:
        """The next backward pass is this rank's last one of the step: its gradients may leave as they come."""
        self._last_merges = merges
        self._missing = [len(bucket.slots) for bucket in self._buckets]
        self._arrived = bytearray(len(self._parameters))
        self._armed = bool(self._hooks)

    def passed(self) -> None:
        """A micro-batch's backward pass is over, and more of the same share are to come."""
        if any(self._narrow):
            self._earlier = [self._of_share(index) for index in range(len(self._parameters))]
            self._clear()

    def push(self, merges: int) -> None:
        """A share other than the last is complete; `merges` sums of the topmost two are due after it."""
        gradients = [self._of_share(index) for index in range(len(self._parameters))]
        self._earlier = None
        self._clear()
        self._stack.append((gradients, [int(gradient is not None) for gradient in gradients]))
        for _ in range(merges):
            right, right_shares = self._stack.pop()
            left, left_shares = self._stack.pop()
            self._stack.append(
                (
                    [_added(a, b) for a, b in zip(left, right, strict=True)],
                    [a + b for a, b in zip(left_shares, right_shares, strict=True)],
                )
            )

    def flush(self) -> None:
        """Sends what has not left yet. Raises PeerLost."""
        self._armed = False
        while self._sent < len(self._buckets):
            self._send()

    def finish(self, count: int) -> None:
        """Waits for the sums and leaves them, divided by `count`, in `.grad`. Raises PeerLost."""
        for total in self._current:
            total.join()
        for bucket, total in zip(self._buckets, self._current, strict=True):
            flat = total.finish()
            shares_that_gave = flat[bucket.counts_at : bucket.numel].tolist()
            flat[: bucket.counts_at].div_(count)
            for slot, shares in zip(bucket.slots, shares_that_gave, strict=True):
                parameter = self._parameters[slot.parameter]
                if shares > 0:
                    gradient = self._view(flat, slot)
                    parameter.grad = gradient.to(parameter.dtype) if self._narrow[slot.parameter] else gradient
                else:
                    parameter.grad = None
        self._stack.clear()
        self._earlier = None

    def _arrival(self, index: int) -> Callable[[torch.Tensor], None]:
        bucket = self._bucket_of[index]

        def arrived(_parameter: torch.Tensor) -> None:
            if not self._armed:
                return
            if self._arrived[index]:
                raise StepError(
                    f"a second gradient for {self._names[index]} arrived in one backward pass; its bucket may be gone\n"
                    "  found  reentrant checkpointing does this, and so does a backward pass inside the loss\n"
                    f"{UNTOUCHED}  next   checkpoint(..., use_reentrant=False), or Run(overlap=False)"
                )
            self._arrived[index] = 1
            self._missing[bucket] -= 1
            while self._sent < len(self._buckets) and self._missing[self._sent] == 0:
                self._send()

        return arrived

    def _send(self) -> None:
        """Fills the next bucket's rows with this rank's subtree sums and starts its exchange.

        A row is one entry of the stack, and the last row the entries that the last share completes with it.
        """
        bucket, total = self._buckets[self._sent], self._current[self._sent]
        if self._last_merges is None:  # an idle rank
            total.rows.fill_(NOTHING)
        else:
            alone = len(self._stack) - self._last_merges
            for row in range(alone + 1):
                shares = [float(self._fill(total.rows[row], slot, row, row == alone)) for slot in bucket.slots]
                total.rows[row, bucket.counts_at : bucket.numel] = torch.tensor(shares, device=bucket.device)
        self._sent += 1
        total.start()

    def _fill(self, row: torch.Tensor, slot: Slot, first: int, last_row: bool) -> int:
        """Writes one parameter's sum over the stack's entries of a row; returns how many shares gave it a gradient."""
        index = slot.parameter
        entries = self._stack[first:] if last_row else self._stack[first : first + 1]
        values = [gradients[index] for gradients, _ in entries]
        shares = sum(gave[index] for _, gave in entries)
        if last_row:
            values.append(self._of_share(index))
            shares += values[-1] is not None
        present = [value for value in values if value is not None]
        target = self._view(row, slot)
        while len(present) > 2:
            right = present.pop()
            present[-1].add_(right)
        if len(present) == 2:
            torch.add(present[0], present[1], out=target)
        elif present:
            target.copy_(present[0])
        else:
            target.fill_(NOTHING)
        return shares

    def _of_share(self, index: int) -> torch.Tensor | None:
        """The present share's gradient: what `.grad` holds and, for 16-bit parameters, earlier micro-batches too."""
        gradient = self._parameters[index].grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise StepError(
                f"the gradient of {self._names[index]} is sparse, and sums in a fixed order need dense ones\n"
                f"{UNTOUCHED}  next   build the layer with sparse=False"
            )
        if gradient is not None and self._narrow[index]:
            gradient = gradient.float()
        return _added(self._earlier[index], gradient) if self._earlier is not None else gradient

    def _view(self, flat: torch.Tensor, slot: Slot) -> torch.Tensor:
        """A slot with the parameter's shape, and its strides where it is dense: as autograd lays gradients out."""
        parameter = self._parameters[slot.parameter]
        if self._dense[slot.parameter]:
            return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset() + slot.offset)
        return flat[slot.offset : slot.offset + slot.numel].view(parameter.shape)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _added(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left.add_(right)

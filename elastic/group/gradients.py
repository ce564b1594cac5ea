"""Sums the gradients of a step's shares over all ranks, in the tree's order, while the last backward still runs.

    share's backward adds into memory of ours -> partial sums merge as the tree says -> the last share's
    gradients complete bucket after bucket, each of which leaves at once -> `finish` puts the sums divided by
    the global count in `.grad`

Partial sums lie in flat memory that is kept from step to step, the lowest of them in the very rows that
travel, and autograd adds a share's gradients to them in place. A share that begins a partial sum finds it
filled with NOTHING, which no sum notices; one that completes a pair adds to its left neighbour at once.
(Taking over autograd's own tensors and merging them cost a GPT of 10 M parameters 35,000 page faults a step,
85 of 890 ms: measured, 2026-11-21.)

Memory: the rows, and up to log2(V) more copies of the gradients on a rank that holds many shares.
Which order the sums have is tree.py's to say, how they travel treesum.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.utils.hooks import RemovableHandle

from elastic.errors import StepError
from elastic.group.form import Group
from elastic.group.layout import Slot, buckets, dense, summed_in
from elastic.group.tree import Schedule
from elastic.group.treesum import NOTHING, TreeSum

UNTOUCHED = "  state  nothing was applied; the model is as it was before this step\n"


@dataclass(eq=False)
class _Partial:
    """The sum of the gradients of a subtree's shares.

    flats      per bucket
    gradients  per parameter its place in them, with a version counter of its own that autograd's additions advance
    gave       the parameters that some share gave a gradient; the others hold NOTHING
    """

    flats: list[torch.Tensor]
    gradients: list[torch.Tensor]
    gave: set[int] = field(default_factory=set)


class GradientSum:
    """The gradients of one set of parameters in one view.

    overlap  send buckets during the last backward pass, and let a backward pass add to the partial sum on its left.
             Off for models whose backward touches a parameter twice in one pass (reentrant checkpointing)
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
        self._overlap = overlap
        self._ordered = ordered
        self._buckets = buckets(self._parameters, bucket_bytes)
        self._bucket_of = {slot.parameter: number for number, b in enumerate(self._buckets) for slot in b.slots}
        self._narrow = [summed_in(parameter.dtype) is not parameter.dtype for parameter in self._parameters]
        self._dense = [dense(parameter) for parameter in self._parameters]
        self._sums: dict[Schedule, tuple[list[TreeSum], list[_Partial]]] = {}
        self._current: list[TreeSum] = []
        self._rows: list[_Partial] = []
        self._spare: list[_Partial] = []
        self._results: dict[int, list[torch.Tensor]] = {}
        self._stack: list[_Partial] = []
        self._versions: list[int] = []
        self._onto_left = False
        self._strided = False
        self._merges: int | None = None
        self._last = self._completes = False
        self._sent = 0
        self._armed = False
        self._arrived = bytearray()
        self._missing: list[int] = []
        self._hooks: list[RemovableHandle] = []
        if overlap:
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
        self._merges = None
        self._sent = 0
        self._armed = False
        self._clear()
        if schedule not in self._sums:
            sums = [
                TreeSum(self._group, schedule, b.numel, b.dtype, b.device, ordered=self._ordered) for b in self._buckets
            ]
            held = sums[0].rows.shape[0] if sums else 0
            self._sums[schedule] = sums, [self._partial([total.rows[row] for total in sums]) for row in range(held)]
        self._current, self._rows = self._sums[schedule]

    def begin_pass(self, merges: int, *, piece: int, pieces: int, last: bool) -> None:
        """Before a backward pass: the `piece`th of a share's `pieces`, followed by `merges` sums of the topmost two.

        last  it is this rank's last one of the step: its gradients may leave as they come
        Several pieces are added up before any merge. Until the first share has shown that no gradient is sparse,
        autograd keeps gradients in tensors of its own.
        """
        self._merges, self._last, self._completes = merges, last, piece == pieces - 1
        if piece == 0:
            self._onto_left = self._overlap and self._strided and merges > 0 and pieces == 1
            if not self._onto_left:
                self._stack.append(self._next())
        self._arrived = bytearray(len(self._parameters))
        gradients = self._stack[-1].gradients
        self._versions = [gradient._version for gradient in gradients]
        for parameter, gradient, narrow in zip(self._parameters, gradients, self._narrow, strict=True):
            parameter.grad = gradient if self._strided and not narrow else None
        if last:
            self._missing = [len(bucket.slots) for bucket in self._buckets]
            self._armed = bool(self._hooks) and self._group.world_size > 1

    def end_pass(self) -> None:
        """After it: takes the gradients; what happens to `.grad` from here on does not count. Raises PeerLost."""
        if self._last:
            self.flush()
        else:
            self._collect(range(len(self._parameters)))
            self._strided |= self._completes
            if self._completes:
                self._merge()
        self._clear()

    def _merge(self) -> None:
        assert self._merges is not None
        for _ in range(self._merges - self._onto_left):
            right = self._stack.pop()
            left = self._stack[-1]
            for bucket, into, out_of in zip(self._buckets, left.flats, right.flats, strict=True):
                into[: bucket.counts_at].add_(out_of[: bucket.counts_at])
            left.gave |= right.gave

    def flush(self) -> None:
        """Sends what has not left yet. Raises PeerLost."""
        self._armed = False
        while self._sent < len(self._buckets):
            self._send()
        self._strided |= self._merges is not None

    def finish(self, count: int) -> None:
        """Waits for the sums and leaves them, divided by `count`, in `.grad`. Raises PeerLost."""
        for total in self._current:
            total.join()
        for bucket, total in zip(self._buckets, self._current, strict=True):
            flat = total.finish()
            shares_that_gave = flat[bucket.counts_at : bucket.numel].tolist()
            flat[: bucket.counts_at].div_(count)
            for slot, shares, gradient in zip(
                bucket.slots, shares_that_gave, self._result(flat, bucket.slots), strict=True
            ):
                parameter = self._parameters[slot.parameter]
                if shares > 0:
                    parameter.grad = gradient.to(parameter.dtype) if self._narrow[slot.parameter] else gradient
                else:
                    parameter.grad = None
        self._stack.clear()
        self._arrived = bytearray()

    def _arrival(self, index: int) -> Callable[[torch.Tensor], None]:
        bucket = self._bucket_of[index]

        def arrived(_parameter: torch.Tensor) -> None:
            if self._arrived[index : index + 1] == b"\1":
                raise self._second_gradient(index)
            if not self._arrived:
                return  # a backward pass that is not ours
            self._arrived[index] = 1
            if not self._armed:
                return
            self._missing[bucket] -= 1
            while self._sent < len(self._buckets) and self._missing[self._sent] == 0:
                self._send()

        return arrived

    def _send(self) -> None:
        """Completes the next bucket of this rank's rows, with the merges that follow the last share, and sends it."""
        number = self._sent
        bucket, total = self._buckets[number], self._current[number]
        if self._merges is None:  # an idle rank
            total.rows.fill_(NOTHING)
        else:
            self._collect(slot.parameter for slot in bucket.slots)
            lowest = len(self._stack) - 1 - (self._merges - self._onto_left)
            for right in range(len(self._stack) - 1, lowest, -1):
                into, out_of = self._stack[right - 1].flats[number], self._stack[right].flats[number]
                into[: bucket.counts_at].add_(out_of[: bucket.counts_at])
            for row in range(lowest + 1):
                merged = self._stack[row:] if row == lowest else self._stack[row : row + 1]
                gave = [float(any(slot.parameter in part.gave for part in merged)) for slot in bucket.slots]
                total.rows[row, bucket.counts_at : bucket.numel] = torch.tensor(gave, device=bucket.device)
        self._sent += 1
        total.start()

    def _collect(self, parameters: Iterable[int]) -> None:
        """Notes which parameters the share gave a gradient, and adds those that autograd did not add in place.

        Those are the 16-bit ones, and all until the first share has been seen.
        """
        partial = self._stack[-1]
        for index in parameters:
            gradient, ours = self._parameters[index].grad, partial.gradients[index]
            if gradient is ours:
                if ours._version != self._versions[index]:
                    partial.gave.add(index)
            elif gradient is not None:
                if gradient.layout is not torch.strided:
                    raise StepError(
                        f"the gradient of {self._names[index]} is sparse, and sums in a fixed order need dense ones\n"
                        f"{UNTOUCHED}  next   build the layer with sparse=False"
                    )
                ours.add_(gradient)
                partial.gave.add(index)
                self._parameters[index].grad = None

    def _next(self) -> _Partial:
        """The memory for one more partial sum on the stack, filled with NOTHING."""
        depth = len(self._stack)
        if depth < len(self._rows):
            partial = self._rows[depth]
        else:
            if depth - len(self._rows) == len(self._spare):
                flats = [torch.empty(b.counts_at, dtype=b.dtype, device=b.device) for b in self._buckets]
                self._spare.append(self._partial(flats))
            partial = self._spare[depth - len(self._rows)]
        for bucket, flat in zip(self._buckets, partial.flats, strict=True):
            flat[: bucket.counts_at].fill_(NOTHING)
        partial.gave.clear()
        return partial

    def _partial(self, flats: list[torch.Tensor]) -> _Partial:
        places: dict[int, torch.Tensor] = {}
        for bucket, flat in zip(self._buckets, flats, strict=True):
            places |= {slot.parameter: self._view(flat, slot).data for slot in bucket.slots}
        return _Partial(flats, [places[index] for index in range(len(self._parameters))])

    def _result(self, flat: torch.Tensor, slots: Sequence[Slot]) -> list[torch.Tensor]:
        """The slots of a sum, whose memory is the same in every step."""
        known = self._results.get(flat.data_ptr())
        if known is None:
            known = self._results[flat.data_ptr()] = [self._view(flat, slot) for slot in slots]
        return known

    def _view(self, flat: torch.Tensor, slot: Slot) -> torch.Tensor:
        """A slot with the parameter's shape, and its strides where it is dense: as autograd lays gradients out."""
        parameter = self._parameters[slot.parameter]
        if self._dense[slot.parameter]:
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

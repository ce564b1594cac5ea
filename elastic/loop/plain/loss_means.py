"""Over what is a loss a mean? Read from autograd's graph, where torch's own reductions and divisions stand in it.

A loss that leaves out padded targets (`ignore_index`), weighs classes, or divides by a mask's sum is a mean over
something else than its caller's examples. What is told is exact; where nothing can be told (a loss of one's own, a
compiled one), nothing is.

`FirstLosses` asks it of the first batches of a loop over batches, which takes each loss for a mean over the batch. A
sum is told of at the first one. A mean over something else shows as soon as two batches divide by what is not in
proportion to their examples. Nothing is said of a sum times a factor that is small enough to make it a mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elastic.state.data_access import same

SUM, MEAN = 2, 1  # torch.nn._reduction's numbers
_BATCHES = 8  # whose losses are looked at
_NODES, _FIRST_NODES = 64, 8  # of a graph, that are looked at
_ABOUT_ONE = 1.5
_ROUNDED = 1e-5
_PASSED = ("AddBackward0", "MulBackward0", "MulBackward1", "DivBackward0", "NegBackward0", "ToCopyBackward0",
          "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0", "ReshapeAliasBackward0",
          "CloneBackward0")  # fmt: skip


@dataclass(frozen=True)
class Mean:
    """A mean that a loss is made of.

    divisor   what its sum is divided by
    node      by which node of the graph
    weighted  of a cross entropy: by the sum of its targets' class weights
    ignored   of a cross entropy: the target that does not count
    """

    divisor: float
    node: str
    weighted: bool = False
    ignored: int | None = None


def mean_over(loss: Any) -> list[int]:
    """Return for each cross entropy that the loss has as a mean the number of targets that count there.

    One whose classes are weighted is a mean over weights, and not told.
    """
    return [int(one.divisor) for one in means(loss) if one.ignored is not None and not one.weighted]


def means(loss: Any) -> Iterator[Mean]:
    """Yield the means that a loss is made of, always in one order: behind sums, factors and changes of its type."""
    waiting: list[Any] = [loss.grad_fn]
    for _ in range(_NODES):
        if not waiting:
            return
        node = waiting.pop()
        name = type(node).__name__
        below = [one for one, _ in node.next_functions if one is not None] if node is not None else []
        if hasattr(node, "_saved_total_weight"):
            if node._saved_reduction == MEAN:
                weighted = node._saved_weight is not None
                yield Mean(float(node._saved_total_weight), name, weighted, _signed(node._saved_ignore_index))
        elif getattr(node, "_saved_reduction", None) == MEAN:
            yield Mean(float(node._saved_self.numel()), name)
        elif name == "MeanBackward0":
            yield Mean(float(node._saved_self_sym_numel), name)
        elif name == "DivBackward0" and below and _is_a_sum(below[0]):
            if node._saved_other is not None and node._saved_other.numel() == 1:
                yield Mean(float(node._saved_other), name)
        elif name in _PASSED:
            waiting += below


def targets_in(batch: Any, mean: Mean) -> list[str]:
    """Return where in a batch a cross entropy may have its targets, as code: it divides by as many as are not left out.

    Language models leave out the first of each text; where both fit, that comes first.
    """
    held = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    whole = [(f"batch[{key!r}]", one) for key, one in held if isinstance(one, torch.Tensor)]
    shifted = [(f"{name}[:, 1:]", one[:, 1:]) for name, one in whole if one.dim() == 2]
    return [name for name, one in (*shifted, *whole) if _counts(one, mean)]


def _counts(targets: torch.Tensor, mean: Mean) -> bool:
    """Return whether a mean is over as many of these as are not left out."""
    ignored = mean.ignored
    return ignored is not None and not targets.is_floating_point() and int(targets.ne(ignored).sum()) == mean.divisor


def _signed(index: int) -> int:
    """Return an index with its sign: the graph shows -100 as what its 64 bits are without one."""
    return index - (1 << 64) if index >= 1 << 63 else index


def _is_a_sum(node: Any) -> bool:
    return type(node).__name__.startswith("SumBackward") or getattr(node, "_saved_reduction", None) == SUM


Divided = tuple[Mean, float, Any]
"""A mean, the number of examples, or what `count` says, in its batch, and the batch."""


class FirstLosses:
    """Looks at the losses of the first batches.

    buffers  those that a pass may move: looking into the graph of a checkpointed part passes it again
    sums     is called with the name of the node that sums, if the first loss is a sum
    divides  is called once, with a mean of two batches that are not in proportion to what the run takes them to be of
    """

    def __init__(
        self,
        buffers: Callable[[], Iterable[torch.Tensor]],
        sums: Callable[[str], None],
        divides: Callable[[Divided, Divided], None],
    ) -> None:
        self._buffers = buffers
        self._sums = sums
        self._divides = divides
        self._left = _BATCHES
        self._before: list[Divided] = []
        self._undo: Callable[[], None] | None = None

    def watch(self, items: float, batch: Any) -> None:
        """Look at the loss of the next call of any tensor's `backward`, which is over so many examples."""
        if not self._left or self._undo is not None:
            return
        before = torch.Tensor.backward

        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if self._undo is not None:
                self._restore()
                kept = [(one, one.clone()) for one in self._buffers()]  # to look may pass a checkpointed part again
                self._look(loss, items, batch)
                for one, value in kept:
                    if not same(one, value):
                        one.copy_(value)
            before(loss, *args, **kwargs)  # type: ignore[no-untyped-call]

        def undo() -> None:
            if torch.Tensor.backward is backward:
                torch.Tensor.backward = before  # type: ignore[method-assign]

        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]
        self._undo = undo

    def close(self) -> None:
        """Look at no loss any more. Whoever has wrapped `backward` in the meantime keeps it: it lets all pass then."""
        self._left, self._before = 0, []
        self._restore()

    def _restore(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _look(self, loss: torch.Tensor, items: float, batch: Any) -> None:
        """Tell of a loss that is a sum, or of one whose means are out of proportion to those of the loss before."""
        if self._left == _BATCHES and (node := summed_by(loss, items)) is not None:
            self._sums(node)
            self._left = 0
        if not self._left or not items:
            return
        self._left -= 1
        now = [(mean, items, batch) for mean in means(loss)]
        for one, other in zip(self._before, now, strict=False):
            if len(self._before) == len(now) and _apart(one, other):
                self._left = 0
                self._divides(one, other)
                break
        self._before = now if self._left else []


def _apart(one: Divided, other: Divided) -> bool:
    """Return whether two means are not in proportion to their batches."""
    (before, items_before, _), (now, items, _) = one, other
    # A divisor that stays while the batch's size changes is a penalty's, say, and nothing of the batch.
    if before.node != now.node or before.divisor == now.divisor:
        return False
    return not math.isclose(before.divisor * items, now.divisor * items_before, rel_tol=_ROUNDED)


def summed_by(loss: torch.Tensor, items: float) -> str | None:
    """Return the name of the node by which the loss is a sum over its batch; None: it is a mean, or nobody can tell."""
    node: Any = loss.grad_fn
    for _ in range(_FIRST_NODES):
        name = type(node).__name__
        reduction = getattr(node, "_saved_reduction", None)
        if reduction is not None:
            return name if reduction == SUM else None
        if name.startswith("SumBackward"):
            return name
        ways = [one for one, _ in getattr(node, "next_functions", ()) if one is not None]
        if name not in _PASSED or name == "DivBackward0" or not ways:
            return None
        if name.startswith("MulBackward") and (len(ways) > 1 or _is_a_division(node, items)):
            return None
        node = ways[0]
    return None


def _is_a_division(node: Any, items: float) -> bool:
    """Return whether a factor divides by about the number of examples, `loss.sum() * (1 / len(y))`, or by more."""
    factor = next(
        (one for name in ("_saved_self", "_saved_other") if (one := getattr(node, name, None)) is not None), None
    )
    if factor is None or getattr(factor, "numel", lambda: 1)() != 1:
        return True
    return abs(float(factor)) * items < _ABOUT_ONE


def sum_for_a_mean(node: str) -> str:
    """Return what people are told of a first loss that is a sum, by this node."""
    return (
        f"the first loss is a sum over its batch ({node}), and a loop over run.batches() takes it for a mean: "
        "gradients come out too large by the number of examples\n"
        '  next   reduction="mean", or loss / len(batch); in `for step in run`, step.backward takes sums'
    )


def means_apart(one: Divided, other: Divided, *, taken: str) -> str:
    """Return what people are told of two means that are out of proportion, and which `count=` fits.

    taken  what the run takes a batch's loss to be a mean over
    """
    (before, items_before, batch_before), (now, items, batch) = one, other
    count, where = "...", "what the loss of that batch divides by"
    fit = targets_in(batch, now)
    found = next((name for name in targets_in(batch_before, before) if name in fit), None)
    targets = found or ("batch['labels']" if isinstance(batch, Mapping) else "batch[1]")
    if now.weighted:
        count, where = (
            f"weight[{targets}].sum()",
            f"where {targets} are the targets, and weight those of the classes",
        )
    elif now.ignored is not None:
        count = f"({targets} != {now.ignored}).sum()"
        where = f"where {targets} are the targets" if found is None else "the targets that are not left out"
    return (
        f"the loss is a mean over {before.divisor:g} where the batch has {items_before:g} ({taken}), and over "
        f"{now.divisor:g} where it has {items:g} ({now.node})\n"
        f"  found  a share of a step is weighed by {taken}, so the update is not the whole batch's mean, and "
        "depends on V\n"
        f"  next   data=Data(count=lambda batch: {count}), {where};\n"
        "         all means that the loss adds up must be over that"
    )

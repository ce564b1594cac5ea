"""Over what is a loss a mean? Read from autograd's graph, where torch's own reductions and divisions stand in it.

A loss that leaves out padded targets (`ignore_index`), weighs classes, or divides by a mask's sum is a mean over
something else than its caller's examples. What is told is exact; where nothing can be told (a loss of one's own, a
compiled one), nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

SUM, MEAN = 2, 1  # torch.nn._reduction's numbers
_LOOKED_AT = 64  # nodes
PASSED = ("AddBackward0", "MulBackward0", "MulBackward1", "DivBackward0", "NegBackward0", "ToCopyBackward0",
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
    for _ in range(_LOOKED_AT):
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
        elif name in PASSED:
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

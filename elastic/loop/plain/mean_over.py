"""Over how many targets is a loss a mean? Read from autograd's graph, where torch's own cross entropy stands in it.

A network that leaves out padded targets (`ignore_index`) divides by those that are left, whatever its caller takes the
loss for. What is told is exact; where nothing can be told (a loss of one's own, a compiled one), nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_MEAN = 1  # torch.nn._reduction's number
_LOOKED_AT = 64  # nodes
_PASSED = ("AddBackward0", "MulBackward0", "DivBackward0", "NegBackward0", "ToCopyBackward0", "ViewBackward0",
           "SqueezeBackward0", "UnsqueezeBackward0", "ReshapeAliasBackward0", "CloneBackward0")  # fmt: skip


def mean_over(loss: torch.Tensor) -> list[int]:
    """Of each cross entropy that the loss has as a mean: the number of targets that count there.

    One whose classes are weighted is a mean over weights, and not told.
    """
    return [
        int(node._saved_total_weight)
        for node in _parts(loss)
        if hasattr(node, "_saved_total_weight") and node._saved_reduction == _MEAN and node._saved_weight is None
    ]


def _parts(loss: torch.Tensor) -> Iterator[Any]:
    """The nodes that a loss is made of: behind sums, factors and changes of its type."""
    waiting: list[Any] = [loss.grad_fn]
    looked_at = 0
    while waiting and looked_at < _LOOKED_AT:
        node = waiting.pop()
        looked_at += 1
        if type(node).__name__ in _PASSED:
            waiting += [one for one, _ in node.next_functions if one is not None]
        elif node is not None:
            yield node

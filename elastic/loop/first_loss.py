"""Is the loss that a plain loop passes back a mean, as the run takes it for? Looked at once, at the first batch.

What a loss was reduced by stands in autograd's graph, behind a scaler's factor, a weight, or a penalty that is added.
Where that cannot be told, nothing is said; nor of a sum times a factor that is small enough to make it a mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_BACKWARD = torch.Tensor.backward
_SUM, _MEAN = 2, 1  # torch.nn._reduction's numbers
_LOOKED_AT = 8  # nodes
_PASSED = ("AddBackward0", "MulBackward0", "NegBackward0", "ToCopyBackward0")  # they leave a loss what it is
_ABOUT_ONE = 1.5


class FirstLoss:
    """found  is called with the name of the node that sums, if the first loss is a sum"""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._seen = False

    def watch(self, items: int) -> None:
        """From here to `close`, or to the next call of any tensor's `backward`: of a loss over so many examples."""
        if self._seen:
            return

        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.close()
            if (node := summed_by(loss, items)) is not None:
                self._found(node)
            loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]

    def close(self) -> None:
        self._seen = True
        torch.Tensor.backward = _BACKWARD  # type: ignore[method-assign]


def summed_by(loss: torch.Tensor, items: int) -> str | None:
    """The name of the node by which the loss is a sum over its batch; None: it is a mean, or that cannot be told."""
    node: Any = loss.grad_fn
    for _ in range(_LOOKED_AT):
        name = type(node).__name__
        reduction = getattr(node, "_saved_reduction", None)
        if reduction is not None:
            return name if reduction == _SUM else None
        if name.startswith("SumBackward"):
            return name
        ways = [one for one, _ in getattr(node, "next_functions", ()) if one is not None]
        if name not in _PASSED or not ways:
            return None
        if name == "MulBackward0" and (len(ways) > 1 or _is_a_division(node, items)):
            return None
        node = ways[0]
    return None


def _is_a_division(node: Any, items: int) -> bool:
    """By about as many as the batch has examples, or more: `loss.sum() * (1 / len(y))`."""
    factor = next((one for name in ("_saved_self", "_saved_other") if (one := getattr(node, name)) is not None), None)
    if factor is None or factor.numel() != 1:
        return True
    return abs(float(factor)) * items < _ABOUT_ONE

"""Is the loss that a plain loop passes back a mean, as the run takes it for? Looked at once, at the first batch.

What a loss was reduced by stands in autograd's graph, behind a scaler's factor, a weight, or a penalty that is added.
Where that cannot be told, nothing is said; nor of a sum times a factor that is small enough to make it a mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SUM, _MEAN = 2, 1  # torch.nn._reduction's numbers
_LOOKED_AT = 8  # nodes
_PASSED = ("AddBackward0", "MulBackward0", "NegBackward0", "ToCopyBackward0")  # they leave a loss what it is
_ABOUT_ONE = 1.5


class FirstLoss:
    """found  is called with the name of the node that sums, if the first loss is a sum"""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._seen = False
        self._undo: Callable[[], None] | None = None

    def watch(self, items: int) -> None:
        """From here to `close`, or to the next call of any tensor's `backward`: of a loss over so many examples."""
        if self._seen or self._undo is not None:
            return
        before = torch.Tensor.backward

        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            looks = not self._seen
            self.close()
            if looks and (node := summed_by(loss, items)) is not None:
                self._found(node)
            before(loss, *args, **kwargs)  # type: ignore[no-untyped-call]

        def undo() -> None:
            if torch.Tensor.backward is backward:
                torch.Tensor.backward = before  # type: ignore[method-assign]

        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]
        self._undo = undo

    def close(self) -> None:
        """Whoever has wrapped `backward` in the meantime keeps it: it lets all pass then."""
        self._seen = True
        if self._undo is not None:
            self._undo()


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

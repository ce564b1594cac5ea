"""Is the loss that a plain loop passes back a mean, as the run takes it for? Looked at once, at the first batch.

What a loss was reduced by stands in autograd's graph. Where that cannot be told, nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_BACKWARD = torch.Tensor.backward
_SUM, _MEAN = 2, 1  # torch.nn._reduction's numbers
_LOOKED_AT = 8  # nodes


class FirstLoss:
    """found  is called with the name of the node that sums, if the first loss is a sum"""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._seen = False

    def watch(self) -> None:
        """From here to `close`, or to the next call of any tensor's `backward`."""
        if self._seen:
            return

        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.close()
            if (node := summed_by(loss)) is not None:
                self._found(node)
            loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]

    def close(self) -> None:
        self._seen = True
        torch.Tensor.backward = _BACKWARD  # type: ignore[method-assign]


def summed_by(loss: torch.Tensor) -> str | None:
    """The name of the node by which the loss is a sum over its batch; None: it is a mean, or that cannot be told."""
    node: Any = loss.grad_fn
    for _ in range(_LOOKED_AT):
        name = type(node).__name__
        reduction = getattr(node, "_saved_reduction", None)
        if reduction is not None:
            return name if reduction == _SUM else None
        if name.startswith("SumBackward"):
            return name
        if name != "AddBackward0":  # a penalty that is added to a loss leaves it what it is
            return None
        node = next((one for one, _ in node.next_functions if one is not None), None)
    return None

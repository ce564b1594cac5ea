"""Is the loss that a plain loop passes back the mean over examples for which the run takes it? Its first batches tell.

A sum is told of at the first one. A mean over something else shows as soon as two batches divide by what is not in
proportion to their examples. Where that cannot be told, nothing is said; nor of a sum times a factor that is small
enough to make it a mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from elastic.loop.plain.mean_over import PASSED, SUM, Mean, means
from elastic.state.data_access import same

_BATCHES = 8  # that are looked at
_LOOKED_AT = 8  # nodes
_ABOUT_ONE = 1.5
_ROUNDED = 1e-5

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
    for _ in range(_LOOKED_AT):
        name = type(node).__name__
        reduction = getattr(node, "_saved_reduction", None)
        if reduction is not None:
            return name if reduction == SUM else None
        if name.startswith("SumBackward"):
            return name
        ways = [one for one, _ in getattr(node, "next_functions", ()) if one is not None]
        if name not in PASSED or name == "DivBackward0" or not ways:
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

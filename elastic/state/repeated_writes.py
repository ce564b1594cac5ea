"""Puts back what a script writes where a run goes on, or a worker joins: it has been written before.

Such a script passes two places again. From `with Run` to its loop it may set a rate, a count in `extra=`, buffers; at
the beginning of an epoch, before its first batch, it lowers a rate, unfreezes layers and gives them a group of their
own, resets an average. The state that came has all that, so afterwards everything is put back. Weights, and the
tensors that optimizers keep beside them, are not copied for this: where the script writes to them, it is refused, and
from `with Run` to the loop at a run's first start, too, which would otherwise end with the first resume.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastic.errors import StepError
from elastic.state.applied import Applied
from elastic.state.data_access import watch


class RepeatedWrites:
    """Notes what there is as the script comes to a place that its state is past, and puts it back at `undo`.

    noted     notes what there is, here
    put_back  gives every object what was noted; called with `noted`, and how many steps are applied. None: this is the
              run's first start, and what is written counts
    """

    def __init__(
        self,
        noted: Applied,
        put_back: Callable[[Applied, int], None] | None,
        optimizers: Mapping[str, torch.optim.Optimizer],
    ) -> None:
        self._noted = noted
        self._put_back = put_back
        self._optimizers = [] if put_back is None else list(optimizers.values())
        self._kept = [{key: copy.copy(kept) for key, kept in one.state.items()} for one in self._optimizers]
        if put_back is None:
            noted.weights.note()
        else:
            noted.note_whole()
        self._unwatch = watch(noted.weights.accessed)
        for optimizer in self._optimizers:
            optimizer.__dict__["add_param_group"] = _is_there_already

    def undo(self, refused: Callable[[str], StepError], *, step: int) -> None:
        """Put back what the script wrote, or raise what `refused` makes of a change that cannot be put back."""
        self.close()
        for optimizer, kept in zip(self._optimizers, self._kept, strict=True):
            optimizer.state.clear()
            optimizer.state.update(kept)
        if self._noted.weights.written() or (self._put_back is not None and not self._noted.known()):
            raise refused(self._noted.weights.in_words())
        if self._put_back is not None and not self._noted.is_as_noted():
            self._put_back(self._noted, step)
        del self._noted, self._put_back  # copies of extra=, which would stay for the run's life
        self._kept = []

    def close(self) -> None:
        """Stop watching, and let the optimizers take groups again."""
        self._unwatch()
        for optimizer in self._optimizers:
            if optimizer.__dict__.get("add_param_group") is _is_there_already:
                del optimizer.__dict__["add_param_group"]


def _is_there_already(_: Any) -> None:
    """Take no group: the state had it already, and torch refuses parameters that are in another group."""

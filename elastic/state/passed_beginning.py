"""What a script does at the beginning of an epoch, before its first batch, is done once: not again where a run goes on,
or a worker joins, in the epoch's midst.

There the script passes the beginning like any other: it lowers a learning rate, unfreezes layers and gives them a group
of their own, resets an average. The state that came has all that, so afterwards it is put back as it came. Weights, and
what optimizers keep beside them, are not copied for this: where the script writes to them, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastic.errors import StepError
from elastic.state.applied import Applied
from elastic.state.reached import watch


class PassedBeginning:
    """From the epoch's number to its first batch.

    noted     notes what there is, here
    put_back  gives every object what was noted; called with `noted`, and how many steps are applied
    """

    def __init__(
        self,
        noted: Applied,
        put_back: Callable[[Applied, int], None],
        optimizers: Mapping[str, torch.optim.Optimizer],
    ) -> None:
        self._noted = noted
        self._put_back = put_back
        self._optimizers = list(optimizers.values())
        noted.note_whole()
        self._unwatch = watch(noted.weights.reached)
        for optimizer in self._optimizers:
            optimizer.__dict__["add_param_group"] = _is_there_already

    def undo(self, *, epoch: int, step: int) -> None:
        """Raises StepError."""
        self.close()
        if not self._noted.known():
            raise StepError(
                f"the script changed weights, or what optimizers keep, at the beginning of epoch {epoch}, which this "
                f"worker comes into at step {step}\n"
                "  found  the epoch began earlier, and the state that came has that change already: it would be made "
                "twice\n"
                "  state  what was applied and saved is whole; nothing was trained here\n"
                "  next   make it at the end of the epoch before, behind its last batch"
            )
        if not self._noted.is_as_noted():
            self._put_back(self._noted, step)

    def close(self) -> None:
        self._unwatch()
        for optimizer in self._optimizers:
            if optimizer.__dict__.get("add_param_group") is _is_there_already:
                del optimizer.__dict__["add_param_group"]


def _is_there_already(_: Any) -> None:
    """torch would refuse the group as one whose parameters are in another."""

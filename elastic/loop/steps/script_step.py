"""What a script may ask of its step, whichever of the loops it has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from elastic.errors import UNTOUCHED, StepError
from elastic.loop.steps.current_step import CurrentStep


class ScriptStep:
    """A step as a script sees it; what this worker does for it is current's."""

    def __init__(self, current: CurrentStep) -> None:
        self.current = current

    @property
    def index(self) -> int:
        """Return the step's number, from 0, over the whole run."""
        return self.current.index

    @property
    def epoch(self) -> int:
        """Return the epoch of its first example."""
        return self.current.plan.epoch

    @property
    def last_of_epoch(self) -> bool:
        """Return whether no later step reads that epoch."""
        return self.current.plan.last_of_epoch

    @property
    def passed_over(self) -> str | None:
        """Return why it was passed over and not applied (see `OnBad`); None: it was not, or not yet."""
        return self.current.passed_over


def counted(count: Any, asked: str) -> float:
    """Return a count as a number. Raises StepError. asked: how it was given."""
    of_one = (isinstance(count, torch.Tensor) and count.numel() == 1) or isinstance(count, np.generic)
    number = count.item() if of_one else count
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise StepError(
            f"{asked}{count!r}: expected how many examples (or tokens, or what their weights add up to) the loss is "
            f"of,\na number of 0 or more\n{UNTOUCHED}  next   give len(y), say"
        )
    return number

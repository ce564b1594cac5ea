"""What a trainer logs, as rows of its run (`Run.log`): each step once, whichever workers are lost, and when.

A trainer's own logger keeps what else it is for, such as settings and pictures, and says where curves lie. Its rows
come there by a logger of elastic.logging's, which `Run(loggers=)` is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from elastic.errors import StepError
from elastic.logging.base import STEP


class _Run(Protocol):
    @property
    def step_index(self) -> int: ...

    def log(self, **values: Any) -> None: ...


class Rows:
    """The rows of a trainer. All workers log the same.

    run  whose rows these are, once it is entered
    """

    def __init__(self) -> None:
        self.run: _Run | None = None
        self._next: tuple[int, dict[str, float]] = 0, {}  # logged ahead of a step, and where the run stands then

    def log(self, values: Mapping[str, Any], *, ahead: bool = False) -> None:
        """Log the numbers among `values`, of the step that was applied last, or of the one that is in hand or `ahead`.

        Raises what Run.log raises.
        """
        run = self.run
        if run is None:
            return
        self.end_step()
        row = {name: value for name, value in values.items() if _is_number(value) and name != STEP}
        if not ahead:
            try:
                run.log(**row)
                return
            except StepError:  # its gradients are under way, and it may come round again
                pass
        step, known = self._next
        self._next = run.step_index + 1, {**(known if step == run.step_index + 1 else {}), **row}

    def end_step(self) -> None:
        """Log what was logged ahead of a step that is applied by now."""
        step, row = self._next
        if row and self.run is not None and step <= self.run.step_index:
            self._next = 0, {}
            if step == self.run.step_index:
                self.run.log(**row)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)

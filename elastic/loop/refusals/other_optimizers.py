"""Optimizers of the run's weights that a script makes within a loop over steps, in place of the one that the run has.

There the run steps its own, and a new one of the script's has no effect, whatever rates it was given. Looked for are
those in the script's variables that were not there as the loop began; one that was may be left from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch

from elastic.errors import StepError
from elastic.loop.refusals.script_variables import variables


class OtherOptimizers:
    """
    parameters  all of the run's models, by name
    handed      what the run was handed, its optimizers too
    """

    def __init__(self, parameters: Callable[[], Mapping[str, torch.nn.Parameter]], handed: Iterable[Any]) -> None:
        self._parameters = parameters
        self._handed = {id(thing) for thing in handed}
        self._from_before: WeakSet[torch.optim.Optimizer] | None = None

    def look(self, step: int) -> None:
        """Raises StepError for one that came since the first look. step: the one in hand"""
        found = {name: thing for name, thing in variables().items() if isinstance(thing, torch.optim.Optimizer)}
        unknown = {name: one for name, one in found.items() if not self._is_known(one)}
        if self._from_before is None:
            self._from_before = WeakSet(unknown.values())
        names = {id(parameter): name for name, parameter in self._parameters().items()} if unknown else {}
        for name, optimizer in unknown.items():
            of = [names[id(one)] for group in optimizer.param_groups for one in group["params"] if id(one) in names]
            if of and optimizer not in self._from_before:
                raise _has_no_effect(name, type(optimizer).__name__, of[0], step)

    def _is_known(self, optimizer: torch.optim.Optimizer) -> bool:
        """Or a wrapper of one that is."""
        return any(id(one) in self._handed for one in (optimizer, *vars(optimizer).values()))


def _has_no_effect(name: str, kind: str, of: str, step: int) -> StepError:
    return StepError(
        f"{name} is a {kind} of {of} that the run does not know, made in the loop by step {step}\n"
        "  found  the run steps the optimizer that it was handed; this one has no effect\n"
        "  state  what the run has applied stays\n"
        "  next   change that one between steps: its param_groups, its state, or add_param_group()"
    )

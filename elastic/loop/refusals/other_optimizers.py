"""Optimizers of the run's weights that a script makes within a loop over steps, in place of the one that the run has.

There the run steps its own, and a new one of the script's has no effect, whatever rates it was given. Looked for are
those in the script's variables, and in attributes of objects there, that were not there as the loop began: one that was
may be left from before. One that shares a group with the run's own is a wrapper of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ProxyTypes, WeakSet

import torch

from elastic.loop.refusals.script_variables import variables


class OtherOptimizers:
    """
    parameters  all of the run's models, by name
    optimizers  gives the run's
    """

    def __init__(
        self,
        parameters: Callable[[], Mapping[str, torch.nn.Parameter]],
        optimizers: Callable[[], list[torch.optim.Optimizer]],
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._known: WeakSet[torch.optim.Optimizer] | None = None

    def new(self) -> Iterator[tuple[str, str, str]]:
        """(its name, its type's, that of a parameter of it) of each that came since the look before; none at the first
        one."""
        known = WeakSet[torch.optim.Optimizer]() if self._known is None else self._known
        first, self._known = self._known is None, known
        groups = {id(group) for one in self._optimizers() for group in one.param_groups}
        names: dict[int, str] = {}
        for name, optimizer in _found():
            if optimizer in known:
                continue
            known.add(optimizer)
            if first or any(id(group) in groups for group in optimizer.param_groups):
                continue
            names = names or {id(parameter): name for name, parameter in self._parameters().items()}
            of = [names[id(one)] for group in optimizer.param_groups for one in group["params"] if id(one) in names]
            if of:
                yield name, type(optimizer).__name__, of[0]


def _found() -> Iterator[tuple[str, torch.optim.Optimizer]]:
    for name, thing in variables().items():
        held = getattr(thing, "__dict__", {}) if not isinstance(thing, torch.nn.Module) else {}
        for path, one in [(name, thing), *((f"{name}.{key}", one) for key, one in [*held.items()])]:
            if type(one) not in ProxyTypes and isinstance(one, torch.optim.Optimizer) and _has_groups(one):
                yield path, one


def _has_groups(optimizer: Any) -> bool:
    """One that is made of others may have none of its own."""
    groups = getattr(optimizer, "param_groups", None)
    return isinstance(groups, list) and all(isinstance(group, dict) and "params" in group for group in groups)

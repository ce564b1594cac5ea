"""Which modules are in eval mode? No state_dict tells, so it travels with the state beside it.

A script may freeze BatchNorm, or a teacher in `extra=`, with `.eval()` between two steps, once and for good. A worker
that joins later, or a resume, starts its script from the first line and has everything in train mode. As with what is
trained (trained.py), what a state says holds from the script's loop on: what comes before it finds everything as at the
run's first start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Modules = Callable[[], Sequence[tuple[str, torch.nn.Module]]]


class Modes:
    """Which of a run's modules are in eval mode, as a part of its state.

    modules  of the models, by name, as they are now
    extra    likewise, those in `extra=`: a teacher
    """

    def __init__(self, modules: Modules, extra: Modules = tuple) -> None:
        self._modules = modules
        self._extra = extra
        self._in_loop = False
        self._carried: dict[str, list[str]] | None = None  # the state's, which holds from the script's loop on

    def now(self) -> dict[str, list[str]]:
        """Return the names of the modules in eval mode."""
        return {"eval": _in_eval(self._modules()), "extra": _in_eval(self._extra())}

    def state_dict(self) -> dict[str, list[str]]:
        return self.now() if self._carried is None else self._carried

    def load_state_dict(self, state: dict[str, list[str]]) -> None:
        """Set the modes; before the script's loop, keep them for `begin_loop`."""
        if self._in_loop:
            self._set(state)
        else:
            self._carried = dict(state)

    def begin_loop(self) -> None:
        """Set the modes of a state that was loaded before the script's loop."""
        self._in_loop = True
        if self._carried is not None:
            self._set(self._carried)
            self._carried = None

    def _set(self, state: dict[str, list[str]]) -> None:
        _set(self._modules(), state["eval"])
        if "extra" in state:  # older runs lack it
            _set(self._extra(), state["extra"])


def _in_eval(modules: Sequence[tuple[str, torch.nn.Module]]) -> list[str]:
    return [name for name, module in modules if not module.training]


def _set(modules: Sequence[tuple[str, torch.nn.Module]], in_eval: Sequence[str]) -> None:
    names = set(in_eval)
    for name, module in modules:
        module.training = name not in names

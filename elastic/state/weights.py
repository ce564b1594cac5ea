"""Tells whether weights, or what optimizers keep beside them, were written since the last update ended.

The script may clip or average them after the inner loop. Nothing of that is kept as it was before: a worker that took
the step over would run that code once more, so such a state is not given to it (applied.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastic.state.data_access import DATA, same
from elastic.state.sharding import local, version_of
from elastic.state.trained import Trained
from elastic.state.trained_set import listed


class Weights:
    """Watches the models' weights and the optimizers' state for writes between two updates.

    A write is known by the tensor's version, or by its value where it was reached through `parameter.data`.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer], trained: Trained) -> None:
        self._optimizers = dict(optimizers)
        self._trained = trained
        self._noted: list[tuple[Any, int]] | None = None
        self._known: set[int] = set()
        self._between = False
        self._unsteady = False
        self._before: dict[int, tuple[torch.nn.Parameter, torch.Tensor]] = {}

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor, _ in self._now()]

    def memory(self) -> frozenset[int]:
        """Return the addresses of the storages that these tensors lie in."""
        return frozenset(local(tensor).untyped_storage().data_ptr() for tensor in self.tensors())

    @property
    def steady(self) -> bool:
        """Return whether nothing was written between updates so far, as far as `written` was asked."""
        return self._noted is not None and not self._unsteady and not self.written()

    def note(self) -> None:
        """Note all versions, at the end of an update."""
        self._noted, self._before, self._between = self._now(), {}, True
        self._known = {id(tensor) for tensor, _ in self._noted}

    def update_begins(self) -> None:
        """Note that the next update begins: from here on writes are its own."""
        self._between = False

    def accessed(self, parameter: torch.nn.Parameter) -> None:
        """Keep a weight's value before something is done to it through `parameter.data` between two updates."""
        if self._between and id(parameter) in self._known and id(parameter) not in self._before:
            self._before[id(parameter)] = parameter, DATA.__get__(parameter).clone()

    def written(self) -> bool:
        """Return whether any of the tensors has been written since `note`."""
        written = self._noted is not None and self._differ(self._noted)
        self._unsteady |= written and self._between
        return written

    def in_words(self) -> str:
        """Say which weights have been written."""
        noted = {id(tensor): version for tensor, version in self._noted or ()}
        trained = self._trained.now()
        weights = [
            name
            for name, weight in zip(trained.names, trained.parameters, strict=True)
            if noted.get(id(weight)) != version_of(weight) or not self._is_as_accessed(weight)
        ]
        return f"weights: {listed(weights)}" if weights else "what optimizers keep, or which parameters there are"

    def _is_as_accessed(self, weight: torch.nn.Parameter) -> bool:
        _, before = self._before.get(id(weight), (weight, None))
        return before is None or same(before, DATA.__get__(weight))

    def watched(self) -> Callable[[], bool]:
        """Return a function that tells, in any thread, whether these have been written to since."""
        noted = self._now()

        def written() -> bool:
            found = any(version_of(tensor) != version for tensor, version in noted) or self._written_through_data()
            self._unsteady |= found
            return found

        return written

    def _differ(self, noted: list[tuple[Any, int]]) -> bool:
        now = self._now()
        if len(now) != len(noted) or any(
            one is not other or version != then for (one, version), (other, then) in zip(now, noted, strict=True)
        ):
            return True
        return self._written_through_data()

    def _written_through_data(self) -> bool:
        return not all(same(before, DATA.__get__(parameter)) for parameter, before in [*self._before.values()])

    def _now(self) -> list[tuple[Any, int]]:
        """Return all tensors with their versions: the weights, and what optimizers keep beside them."""
        tensors = [
            tensor
            for optimizer in self._optimizers.values()
            for state in optimizer.state.values()
            for tensor in (state.values() if isinstance(state, dict) else ())
            if isinstance(tensor, torch.Tensor)
        ]
        return [(tensor, version_of(tensor)) for tensor in (*self._trained.now().parameters, *tensors)]

"""Tells whether the script has changed, before a step's inner loop, what a resume would change once more.

A boundary's state is what a run goes on from, and the first thing that happens then is the script's code before the
inner loop. A state that is saved in the midst of a step has what that code did, and would get it twice.

Looked at are schedulers, what stands in extra=, and the weights; not what such code sets by the step's number, as
learning rates and which parameters train: twice is as good as once. At the beginning of an epoch it is not, since
scripts lower a rate there, or add a group: before an epoch's first step groups, options and buffers are looked at as
well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import elastic_checkpoint
from elastic.state.applied import Applied
from elastic.state.sharding import local, version_of


class SinceBoundary:
    """Finds what a resume would change once more: notes it at a boundary, and compares it within the step.

    changeable  name -> object with a state_dict
    weights     gives what is trained
    by_design   names of what changes there in any case: a trainer's counters, which it sets itself on a resume
    """

    def __init__(self, changeable: Mapping[str, Any], weights: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._changeable = dict(changeable)
        self.by_design = {name for name, thing in changeable.items() if getattr(thing, "counts_before_steps", False)}
        self._weights = weights
        self._noted: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {}
        self._versions: dict[str, dict[str, int]] = {}
        self._written: list[int] | None = None
        self._epoch: Applied | None = None

    def note(self, epoch: Applied | None = None) -> None:
        """Note what there is at a boundary. epoch: where one begins there, notes what else its beginning may change."""
        if (now := epoch) is not None:
            now.note()
        self._epoch = now
        self._noted = {name: elastic_checkpoint.encode(thing.state_dict()) for name, thing in self._changeable.items()}
        self._versions = {
            name: {key: version_of(tensor) for key, tensor in tensors.items()}
            for name, (_, tensors) in self._noted.items()
        }
        self._written = [version_of(weight) for weight in self._weights()]

    def changed(self) -> list[str]:
        """Return the names of what has changed since `note`; none where nothing was noted."""
        found = [name for name, noted in self._noted.items() if not self._is_as(name, *noted)]
        if self._written is not None and self._written != [version_of(weight) for weight in self._weights()]:
            found.append("weights")
        if self._epoch is not None:
            found += [name for name in self._epoch.changed() if name not in found]
        return found

    def _is_as(self, name: str, document: Any, tensors: Mapping[str, torch.Tensor]) -> bool:
        document_now, now = elastic_checkpoint.encode(self._changeable[name].state_dict())
        if document_now != document or now.keys() != tensors.keys():
            return False
        return all(self._is_same(now[key], then, self._versions[name][key]) for key, then in tensors.items())

    @staticmethod
    def _is_same(now: torch.Tensor, then: torch.Tensor, version: int) -> bool:
        """Return whether a tensor is as noted. A state_dict may give its object's own tensors, or copies."""
        here, there = local(now), local(then)  # of DTensors torch would ask the other members
        return version_of(then) == version and (here.data_ptr() == there.data_ptr() or torch.equal(here, there))

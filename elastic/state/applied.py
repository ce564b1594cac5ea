"""What the script's code between two steps may change, as it was when the last step was applied.

A worker that has applied a step runs the code after the inner loop, which may count in `extra=` or let a plateau
scheduler lower the learning rate. A worker that lost that step's exchange takes the state over, and then runs that
code itself: so it must get these objects as they were before it, or it would count twice.

Kept are plain values (copied: learning rates, counters) and, of tensors, a mark: one that has not changed since is
its own copy. One that was ever seen to change between two steps is copied at every step from then on. When that
happens for the first time just before a fault, nothing can be given, and `known` says so. A mark is the tensor's
version and, since `.data` and some kernels change values without counting one, a hash of up to _LOOKED_AT of its
elements, evenly spread: what changes fewer than that of a large tensor, by such means and between two steps, is missed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

import checkpoint

Tree = dict[str, Any]
Mark = tuple[int, int]

_LOOKED_AT = 4096
_LOOK_EVERY = 16  # steps, after the first ones; in between only versions are compared


@dataclass
class _Kept:
    document: Any
    tensors: dict[str, torch.Tensor]
    marks: dict[str, Mark]
    copies: dict[str, torch.Tensor] = field(default_factory=dict)


class Applied:
    """
    changeable  name -> object with a state_dict: schedulers, extras
    optimizers  name -> optimizer, of which only the groups' settings may change between steps
    """

    def __init__(self, changeable: Mapping[str, Any], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._changeable = dict(changeable)
        self._optimizers = dict(optimizers)
        self._lively: set[tuple[str, str]] = set()
        self._looks = 0
        self._kept: dict[str, _Kept] = {}
        self._settings: dict[str, list[dict[str, Any]]] = {}

    def note(self) -> None:
        """The end of an update."""
        for name, thing in self._changeable.items():
            document, tensors = checkpoint.encode(thing.state_dict())
            kept = _Kept(document, tensors, {key: _mark(tensor) for key, tensor in tensors.items()})
            kept.copies = {key: tensor.clone() for key, tensor in tensors.items() if (name, key) in self._lively}
            self._kept[name] = kept
        for name, optimizer in self._optimizers.items():
            self._settings[name] = [_settings(group) for group in optimizer.param_groups]

    def look(self) -> None:
        """The beginning of the next update: what has changed since `note`, the script's own code has changed."""
        self._looks += 1
        closely = self._looks <= _LOOK_EVERY or self._looks % _LOOK_EVERY == 0
        for name, kept in self._kept.items():
            self._lively |= {(name, key) for key in self._changed(kept, closely=closely)}

    def known(self) -> bool:
        """Whether `tree` can be given."""
        return not any(self._changed(kept) - kept.copies.keys() for kept in self._kept.values())

    def tree(self, objects: Tree) -> Tree:
        """`objects` with these things as they were at `note`. Ask `known` first."""
        found = dict(objects)
        for name, kept in self._kept.items():
            found[name] = checkpoint.decode(kept.document, {**kept.tensors, **kept.copies})
        for name, settings in self._settings.items():
            state = self._optimizers[name].state_dict()
            groups = [{**group, **then} for group, then in zip(state["param_groups"], settings, strict=True)]
            found[name] = {**state, "param_groups": groups}
        return found

    def _changed(self, kept: _Kept, *, closely: bool = True) -> set[str]:
        return {
            key
            for key, tensor in kept.tensors.items()
            if tensor._version != kept.marks[key][0] or (closely and _mark(tensor) != kept.marks[key])
        }


def _mark(tensor: torch.Tensor) -> Mark:
    if not tensor.numel() or tensor.device.type != "cpu":  # a look at another device would wait for it
        return tensor._version, 0
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // _LOOKED_AT)].contiguous()
    return tensor._version, xxhash.xxh3_64_intdigest(some.view(torch.uint8).numpy().data)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}

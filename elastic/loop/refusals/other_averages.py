"""Averages of weights that are no modules, and that the run was not handed: a dict of tensors by the names of a model's
parameters, or a list of tensors of their shapes, in a variable of the script or an attribute of an object there.

Found are those that change, as with other modules. One begins as a copy of the weights, which gradients that are kept
to be looked at do not. One that is made anew each time is another one: those that were found are held from look to
look, for else another might come to lie where it was. So they are looked at in the first steps alone, and a copy of
weights or gradients that a script keeps costs no memory afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from elastic.loop.refusals.other_modules import Unhanded, is_carried
from elastic.loop.refusals.script_variables import variables

_HOLDERS = (dict, OrderedDict, list)

Parameters = Callable[[], Mapping[str, torch.nn.Parameter]]


class OtherAverages:
    """
    parameters  all of the run's models, by name
    buffers     likewise, which may stand beside them
    extra       what the run was handed beside them
    """

    def __init__(
        self, parameters: Parameters, buffers: Callable[[], Mapping[str, torch.Tensor]], extra: Mapping[str, Any]
    ) -> None:
        self._parameters = parameters
        self._buffers = buffers
        self._extra = dict(extra)
        self._handed = {id(thing) for thing in extra.values()}
        self._seen: dict[str, tuple[Any, list[tuple[int, int]]]] = {}

    def changed(self, step: int) -> Iterator[Unhanded]:
        """Those that have changed since they were first found. step: the one in hand"""
        parameters = self._parameters()
        state = {**self._buffers(), **parameters}
        memory = {parameter.untyped_storage().data_ptr() for parameter in state.values()}
        for name, found in self._holders():
            tensors = list(found.values()) if isinstance(found, dict) else found
            if not _is_average(found, tensors, parameters, state):
                continue
            now = [(id(one), one._version) for one in tensors if one.untyped_storage().data_ptr() not in memory]
            there, then = self._seen.get(name, (None, now))
            if there is not found and not _is_copy(found, tensors, state if isinstance(found, dict) else parameters):
                continue
            if there is found and then != now and not is_carried(self._extra, tensors):
                what = "a copy or an average of weights that the run was not handed"
                yield Unhanded(name, what, step)
            self._seen[name] = found, now

    def forget(self) -> None:
        """There is no look after this one."""
        self._seen = {}

    def _holders(self) -> Iterator[tuple[str, Any]]:
        for name, thing in variables().items():
            if id(thing) in self._handed or isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
                continue
            attributes = getattr(thing, "__dict__", {})
            held = {name: thing, **{f"{name}.{key}": one for key, one in attributes.items()}}
            yield from ((path, one) for path, one in held.items() if type(one) in _HOLDERS)


def _is_copy(found: Any, tensors: list[torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> bool:
    weights: list[torch.Tensor]
    if isinstance(found, dict):
        weights = [parameters[key] for key in found]
    else:
        weights = list(parameters.values())
        weights = weights if len(weights) == len(tensors) else [one for one in weights if one.requires_grad]
    alike = zip(tensors, weights, strict=True)
    return all(one.device == weight.device and torch.equal(one, weight) for one, weight in alike)


def _is_average(
    found: Any,
    tensors: list[Any],
    parameters: Mapping[str, torch.nn.Parameter],
    state: Mapping[str, torch.Tensor],
) -> bool:
    """Of weights that are trained, at least."""
    if not tensors or not all(isinstance(one, torch.Tensor) and not one.is_inference() for one in tensors):
        return False
    if isinstance(found, dict):
        same = all(key in state and one.shape == state[key].shape for key, one in found.items())
        return same and any(key in parameters for key in found)
    shapes = [[p.shape for p in parameters.values()], [p.shape for p in parameters.values() if p.requires_grad]]
    return [one.shape for one in tensors] in shapes

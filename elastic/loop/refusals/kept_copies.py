"""Copies of the run's weights that a script takes while it trains, and keeps: those of the best epoch, or a teacher
that is replaced now and then.

    best = copy.deepcopy(model.state_dict())            teacher = copy.deepcopy(model)

No save holds them, and a worker that joins has none. What comes of them where they are written to a file is as it would
be; where they become the result, it depends on what happened to the run. So they are told of, once, and not refused:
nobody sees from here what a script makes of one.

Looked for are dicts of tensors and modules with the names of one of the run's models, and its values at that moment, in
the script's variables and in attributes of objects there: those that were not there at the first step that was looked
at, and are found at two such steps. One that a body makes for itself, or each step, does not stay so long. Epochs begin
with such a step; a copy that is taken in the middle of one, and found when weights have moved on, is passed over.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any
from weakref import ref

import torch
from torch.nn.parameter import is_lazy

from elastic.loop.refusals.other_modules import Roots
from elastic.loop.refusals.script_variables import variables

_Found = dict[str, "ref[torch.Tensor]"]
_DICTS = (dict, OrderedDict)  # and none that does something else when it is looked into
_AGAIN_MAX = 3  # times that the step after one is looked at, too, for the sake of one name


class KeptCopies:
    """
    known    the run's modules, by name
    extra    what the run was handed beside its models
    tell     called with what is told

    looks_again  the next step is to be looked at, too
    """

    def __init__(self, known: Roots, extra: Mapping[str, Any], *, tell: Callable[[str], None]) -> None:
        self._known = known
        self._handed = {id(thing) for thing in extra.values()}
        self._tell = tell
        self._first: _Found | None = None
        self._last: _Found = {}
        self._step = -1
        self.looks_again = False
        self._told: set[str] = set()
        self._again: Counter[str] = Counter()

    def look(self, step: int) -> None:
        """step: the one in hand, of which one look is enough"""
        if step == self._step:
            return
        found = dict(self._copies())
        before, self._step = self._last, step
        self._last = {name: ref(tensor) for name, tensor in found.items()}
        self._first = self._last if self._first is None else self._first
        self.looks_again = False
        for name, tensor in found.items():
            if name in self._told or _is(self._first.get(name), tensor):
                continue
            if _is(before.get(name), tensor):
                self._told.add(name)
                self._tell(
                    f"{name} keeps a copy of the run's weights since before step {step}, which no save holds\n"
                    "  found  where it is written to a file, all is well; what else comes of it, such as a teacher's "
                    "answers,\n         differs after a resume, and on a worker that has joined since\n"
                    "  next   weights to come back to, as the best epoch's, belong into a module that the run is\n"
                    "         handed by extra= (elastic docs write-the-loop, Keep the best weights)"
                )
            elif self._again[name] < _AGAIN_MAX:
                self._again[name] += 1
                self.looks_again = True

    def _copies(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By name, each with a tensor of it that is none of the run's."""
        known = self._known()
        states = [state for root in known.values() if (state := _state(root))]
        own = {_memory(tensor) for state in states for tensor in state.values()}
        modules = {id(root) for root in known.values()}
        for name, thing in self._holders():
            if id(thing) in modules:
                continue
            held = _state(thing) if isinstance(thing, torch.nn.Module) else thing
            for state in states:
                if (other := _copied(held, state, own)) is not None:
                    if _is(self._last.get(name), other) or _has_values(held, state):
                        yield name, other
                    break

    def _holders(self) -> Iterator[tuple[str, Any]]:
        for name, thing in variables().items():
            if id(thing) in self._handed or isinstance(thing, torch.optim.Optimizer):
                continue
            attributes = {} if isinstance(thing, torch.nn.Module) else getattr(thing, "__dict__", {})
            held = [(name, thing), *((f"{name}.{key}", one) for key, one in list(attributes.items()))]
            yield from ((path, one) for path, one in held if type(one) in _DICTS or isinstance(one, torch.nn.Module))


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters and buffers, by the names that its state_dict has for them."""
    if any(is_lazy(one) for one in module.parameters()):
        return {}
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _copied(held: Mapping[Any, Any], state: Mapping[str, torch.Tensor], own: Container[int]) -> torch.Tensor | None:
    """A tensor that is none of the run's, of what holds tensors by names of this state, and nothing else."""
    if not held or len(held) > len(state) or next(iter(list(held)), None) not in state:  # which tells most at once
        return None
    if not all(isinstance(one, torch.Tensor) and _alike(one, state.get(key)) for key, one in list(held.items())):
        return None
    return next((one for one in list(held.values()) if one.numel() and _memory(one) not in own), None)


def _alike(one: torch.Tensor, weights: torch.Tensor | None) -> bool:
    return weights is not None and (one.shape, one.dtype, one.device) == (weights.shape, weights.dtype, weights.device)


def _has_values(held: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one, state[key]) for key, one in list(held.items()))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _is(one: ref[torch.Tensor] | None, tensor: torch.Tensor) -> bool:
    return one is not None and one() is tensor

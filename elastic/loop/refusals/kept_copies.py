"""Copies of the run's weights that a script takes while it trains, and keeps: those of the best epoch, or a teacher
that is replaced now and then.

    best = copy.deepcopy(model.state_dict())            teacher = copy.deepcopy(model)

No save holds them, and a worker that joins has none. What comes of them where they are written to a file is as it would
be; where they become the result, it depends on what happened to the run. So they are told of, once; and one that a body
computes with is refused.

Looked for are dicts of tensors and modules with the names and shapes of one of the run's models, in the script's
variables and in attributes of objects there: those that were not there at the first step that was looked at, and are
found at two such steps. One that a body makes for itself, or each step, does not stay so long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any
from weakref import ref

import torch

from elastic.loop.refusals.other_modules import Roots, unhanded
from elastic.loop.refusals.script_variables import variables

Shapes = Mapping[str, torch.Size]
_Found = dict[str, "ref[torch.Tensor]"]
_AGAIN_MAX = 3  # times that the step after one is looked at, too, for the sake of one name


class KeptCopies:
    """
    known    the run's modules, by name
    extra    what the run was handed beside its models
    in_body  whether a body computes with the weights of a step that is not applied yet
    tell     called with what is told

    looks_again  the next step is to be looked at, too
    """

    def __init__(
        self, known: Roots, extra: Mapping[str, Any], *, in_body: Callable[[], bool], tell: Callable[[str], None]
    ) -> None:
        self._known = known
        self._handed = {id(thing) for thing in extra.values()}
        self._in_body = in_body
        self._tell = tell
        self._first: _Found | None = None
        self._last: _Found = {}
        self._step = -1
        self.looks_again = False
        self._told: set[str] = set()
        self._again: Counter[str] = Counter()
        self._hooks: list[Callable[[], None]] = []

    def look(self, step: int) -> None:
        """step: the one in hand, of which one look is enough"""
        if step == self._step:
            return
        found = dict(self._copies())
        before, self._step = self._last, step
        self._last = {name: ref(tensor) for name, (_, tensor) in found.items()}
        self._first = self._last if self._first is None else self._first
        self.looks_again = False
        for name, (copy, tensor) in found.items():
            if name in self._told or _is(self._first.get(name), tensor):
                continue
            if _is(before.get(name), tensor):
                self._told.add(name)
                self._is_kept(name, copy, step)
            elif self._again[name] < _AGAIN_MAX:
                self._again[name] += 1
                self.looks_again = True

    def close(self) -> None:
        for remove in self._hooks:
            remove()
        self._hooks = []

    def _is_kept(self, name: str, copy: Any, step: int) -> None:
        self._tell(
            f"{name} keeps a copy of the run's weights since before step {step}, which no save holds\n"
            "  found  where it is written to a file, all is well; what else comes of it differs after a resume, and\n"
            "         on a worker that has joined since\n"
            "  next   weights to come back to, as the best epoch's, belong into a module that the run is handed, by\n"
            "         extra= (docs/how-to/write-the-loop.md, Keep the best weights)"
        )
        if isinstance(copy, torch.nn.Module):

            def asked(*_: Any) -> None:
                if self._in_body():
                    raise unhanded(name, "a copy of the run's weights that the run was not handed", "", step)

            self._hooks.append(copy.register_forward_pre_hook(asked).remove)

    def _copies(self) -> Iterator[tuple[str, tuple[Any, torch.Tensor]]]:
        """By name, each with a tensor of it that is none of the run's."""
        known = self._known()
        states = [state for root in known.values() if (state := _state(root))]
        own = {_memory(tensor) for state in states for tensor in state.values()}
        shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
        modules = {id(root) for root in known.values()}
        for name, thing in self._holders():
            if isinstance(thing, torch.nn.Module):
                state = {} if id(thing) in modules else _state(thing)
                is_copy = {key: tensor.shape for key, tensor in state.items()} in shapes if state else False
            else:
                state, is_copy = thing, _is_part(thing, shapes)
            if is_copy and (other := _not_in(own, state)) is not None:
                yield name, (thing, other)

    def _holders(self) -> Iterator[tuple[str, Any]]:
        for name, thing in variables().items():
            if id(thing) in self._handed or isinstance(thing, torch.optim.Optimizer):
                continue
            attributes = {} if isinstance(thing, torch.nn.Module) else getattr(thing, "__dict__", {})
            held = {name: thing, **{f"{name}.{key}": one for key, one in attributes.items()}}
            yield from ((path, one) for path, one in held.items() if isinstance(one, (dict, torch.nn.Module)))


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters and buffers, by the names that its state_dict has for them."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _is_part(thing: Mapping[Any, Any], known: Iterable[Shapes]) -> bool:
    """Whether it holds tensors by names of one of these, and of their shapes, and nothing else."""
    if not thing or not all(isinstance(one, torch.Tensor) for one in thing.values()):
        return False
    return any(all(key in shapes and one.shape == shapes[key] for key, one in thing.items()) for shapes in known)


def _not_in(memory: Container[int], state: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    return next((one for one in state.values() if one.numel() and _memory(one) not in memory), None)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _is(one: ref[torch.Tensor] | None, tensor: torch.Tensor) -> bool:
    return one is not None and one() is tensor

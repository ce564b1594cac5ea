"""Modules of the script's own that the run was not handed: a teacher, a target network, an average of weights.

One that stays as it is may be anybody's. One that changes is neither saved nor given to those who join, and what a body
makes of it is made once a share: that is refused. Looked for are those in the script's variables, and in what these
hold, with weights or buffers that are none of the run's; in the first steps, at an epoch's first one, and now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any
from weakref import ProxyTypes, WeakKeyDictionary

import torch
from torch.nn.parameter import is_lazy

import checkpoint
from elastic.errors import StepError
from elastic.loop.refusals.script_variables import variables
from elastic.state.applied import Mark, mark
from elastic.state.modules import held, modules
from elastic.state.reached import same
from elastic.state.trained_set import listed

_DEPTH_MAX = 2  # objects: what hangs deeper, in a trainer's callbacks, say, is others' to carry

Roots = Callable[[], Mapping[str, torch.nn.Module]]

_of_runs: list[Roots] = []
"""The modules of any run that is open in this process: they are that run's to save and to give."""


class OtherModules:
    """
    known  the run's modules, by name
    extra  what the run was handed beside its models
    """

    def __init__(self, known: Roots, extra: Mapping[str, Any]) -> None:
        self._known = known
        self._extra = dict(extra)
        self._marks: WeakKeyDictionary[torch.nn.Module, dict[str, Mark]] = WeakKeyDictionary()

    def open(self) -> Callable[[], None]:
        """Returns what ends it."""
        _of_runs.append(self._known)
        return partial(_of_runs.remove, self._known)

    def look(self, step: int, *, closely: bool, over_steps: bool) -> None:
        """Raises StepError for one that has changed since it was first found.

        step        the one in hand
        closely     at its values, too, and not at versions alone
        over_steps  it is a loop over steps; else over batches
        """
        known = [*chain.from_iterable(of_run().values() for of_run in _of_runs)]
        own = {id(module) for _, _, module in modules({str(number): module for number, module in enumerate(known)})}
        for root, module in held(variables(), _DEPTH_MAX).items():
            if id(module) in own or type(module) in ProxyTypes:
                continue
            if not (tensors := dict(_tensors(module, own))):
                continue
            if module not in self._marks:
                self._marks[module] = {name: mark(one) for name, one in tensors.items()}
            before = self._marks[module]
            changed = {
                name: one
                for name, one in tensors.items()
                if name in before and (one._version != before[name][0] or (closely and mark(one) != before[name]))
            }
            names = _not_of(known, changed) if changed else []
            if names and is_carried(self._extra, [changed[name] for name in names]):
                self._marks[module] = {name: mark(one) for name, one in tensors.items()}
            elif names:
                which = f": {listed(names)}"
                raise unhanded(root, "a module that the run was not handed", which, step, over_steps=over_steps)


def _tensors(module: torch.nn.Module, own: Container[int]) -> Iterator[tuple[str, torch.Tensor]]:
    for _, path, one in modules({"": module}):
        if id(one) in own:
            continue
        for key, tensor in [*one.named_parameters(recurse=False), *one.named_buffers(recurse=False)]:
            if not is_lazy(tensor) and not tensor.is_inference() and tensor.layout is torch.strided:
                yield f"{path}.{key}" if path else key, tensor


def _not_of(known: Iterable[torch.nn.Module], changed: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of those that are none of the run's under another name."""
    memory = {_memory(tensor) for root in known for _, tensor in _tensors(root, ())}
    return [name for name, tensor in changed.items() if _memory(tensor) not in memory]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_carried(extra: Mapping[str, Any], tensors: Iterable[torch.Tensor]) -> bool:
    """Whether the state of what the run was handed holds these, under whatever name."""
    kept = [one for thing in extra.values() for one in checkpoint.encode(thing.state_dict())[1].values()]
    there = {(_memory(one), one.storage_offset(), one.shape) for one in kept}
    return all(
        (_memory(one), one.storage_offset(), one.shape) in there
        or any(same(one, other) for other in kept if other.device == one.device)
        for one in tensors
    )


def unhanded(name: str, what: str, which: str, step: int, *, over_steps: bool) -> StepError:
    """what: it is; which: what of it has changed"""
    key = name.rpartition(".")[2]
    by_share = (
        "; and what the loop's body makes of it is made once a\n         share, of which a worker has as many as the "
        "world size says"
    )
    return StepError(
        f"{name} is {what}, and it has changed by step {step}{which}\n"
        f"  found  it would be neither saved nor given to those who join{'' if over_steps else by_share}\n"
        "  state  what the run has applied stays\n"
        f"  next   hand it over: Run(extra={{{key!r}: {name}}}); change it "
        f"{'behind the inner loop' if over_steps else 'where a step is applied: if run.stepped'}; one that is\n"
        "         only asked, and whose buffers move all the same, wants .eval()"
    )

"""Modules of the script's own that the run was not handed: a teacher, a target network, an average of weights.

One that stays as it is may be anybody's. One that changes is neither saved nor given to those who join, and what a body
makes of it is made once a share; what is done about it, looks.py says. Looked for are those in the script's variables,
and in what these hold, with weights or buffers that are none of the run's; in the first steps, at an epoch's first one,
and now and then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from weakref import ProxyTypes, WeakKeyDictionary, WeakSet, ref

import torch
from torch.nn.parameter import is_lazy

import elastic_checkpoint
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


class _Seen(NamedTuple):
    mark: Mark
    where: tuple[torch.dtype, torch.device]
    moved: bool = False


def _where(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


class OtherModules:
    """
    known  the run's modules, by name
    extra  what the run was handed beside its models
    """

    def __init__(self, known: Roots, extra: Mapping[str, Any]) -> None:
        self._known = known
        self._extra = dict(extra)
        self._found: WeakSet[torch.nn.Module] = WeakSet()
        self._marks: WeakKeyDictionary[torch.nn.Module, dict[str, _Seen]] = WeakKeyDictionary()

    def open(self) -> Callable[[], None]:
        """Returns what ends it."""
        _of_runs.append(self._known)
        return partial(_of_runs.remove, self._known)

    def changed(self, step: int, *, closely: bool) -> Iterator[Unhanded]:
        """Those that have changed since they were first found, each once.

        step     the one in hand
        closely  at its values, too, and not at versions alone
        """
        known = [*chain.from_iterable(of_run().values() for of_run in _of_runs)]
        own = {id(module) for _, _, module in modules({str(number): module for number, module in enumerate(known)})}
        for root, module in held(variables(), _DEPTH_MAX).items():
            if id(module) in own or type(module) in ProxyTypes or module in self._found:
                continue
            try:
                names = self._changes_of(module, known, own, closely=closely)
            except Exception:  # its own, where it is looked at: the others are looked at all the same
                continue
            if names:
                self._found.add(module)
                which = f": {listed(names)}"
                yield Unhanded(root, "a module that the run was not handed", step, which, tuple(names), ref(module))

    def _changes_of(
        self, module: torch.nn.Module, known: Iterable[torch.nn.Module], own: Container[int], *, closely: bool
    ) -> list[str]:
        tensors = dict(_tensors(module, own))
        before = self._marks.setdefault(module, {})
        for name, one in tensors.items():
            seen = before.get(name)
            if seen is None or (seen.where != _where(one) and not seen.moved):  # cast, or moved, once
                before[name] = _Seen(mark(one), _where(one), moved=seen is not None)
        changed = {
            name: one
            for name, one in tensors.items()
            if one._version != before[name].mark[0] or (closely and mark(one) != before[name].mark)
        }
        names = _not_of(known, changed) if changed else []
        if names and is_carried(self._extra, [changed[name] for name in names]):
            before |= {name: _Seen(mark(one), _where(one)) for name, one in tensors.items()}
            return []
        return names


def _tensors(module: torch.nn.Module, own: Container[int]) -> Iterator[tuple[str, torch.Tensor]]:
    for _, path, one in modules({"": module}):
        if id(one) in own:
            continue
        passing = set() if one.training else one._non_persistent_buffers_set  # tables that grow with an input, say
        buffers = [item for item in one.named_buffers(recurse=False) if item[0] not in passing]
        for key, tensor in [*one.named_parameters(recurse=False), *buffers]:
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
    kept = [one for thing in extra.values() for one in elastic_checkpoint.encode(thing.state_dict())[1].values()]
    there = {(_memory(one), one.storage_offset(), one.shape) for one in kept}
    return all(
        (_memory(one), one.storage_offset(), one.shape) in there
        or any(same(one, other) for other in kept if other.device == one.device)
        for one in tensors
    )


@dataclass(frozen=True)
class Unhanded:
    """Something of the script's that has changed.

    name    of the variable, and from there
    what    it is
    step    by which it has changed
    which   of it has
    names   likewise, of a module's parameters and buffers
    module  it, where it is one
    """

    name: str
    what: str
    step: int
    which: str = ""
    names: tuple[str, ...] = ()
    module: ref[torch.nn.Module] | None = None

    def by_batches(self) -> StepError:
        return StepError(
            f"{self._said}\n"
            "  found  it would be neither saved nor given to those who join; and what the loop's body makes of it is "
            "made once a\n         share, of which a worker has as many as the world size says\n"
            "  state  what the run has applied stays\n"
            f"  next   hand it over: {self._handed}; change it where a step is applied: if run.stepped{self._or_eval}"
        )

    def by_steps(self) -> str:
        return (
            f"{self._said}\n"
            "  found  no save holds it, and a worker that joins begins it anew\n"
            "  next   nothing, where it is only looked at, or made of the model whenever it is used; what training "
            f"depends on, as on a\n         teacher, is handed over: {self._handed}"
        )

    def by_steps_that_ask(self) -> StepError:
        return StepError(
            f"{self._expression}, a module that the run was not handed, changes, and is asked in the inner loop\n"
            "  found  what it answers is no part of the run: no save holds it, and a worker that joins begins it anew\n"
            "  state  the model is as it was before this step\n"
            f"  next   hand it over: {self._handed}{self._or_eval}"
        )

    @property
    def _said(self) -> str:
        return f"{self._expression} is {self.what}, and it has changed by step {self.step}{self.which}"

    @property
    def _expression(self) -> str:
        return re.sub(r"\.(\d+)", r"[\1]", self.name)

    @property
    def _handed(self) -> str:
        key = self.name.rpartition(".")[2]
        key = key if key.isidentifier() else "mine"
        if self.module is not None:
            return f"Run(extra={{{key!r}: {self._expression}}})"
        return f"in an object with state_dict and load_state_dict, Run(extra={{{key!r}: ...}})"

    @property
    def _or_eval(self) -> str:
        return (
            "; one that is\n         only asked, and whose buffers move all the same, wants .eval()"
            if self.module is not None
            else ""
        )

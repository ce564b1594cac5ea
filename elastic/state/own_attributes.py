"""What a trainer's callbacks, and a trainer of one's own, keep in attributes: counts, histories, averages of weights.

No framework saves them, unless the class says how; and what follows may depend on them. So what of them is no longer as
it was before the run is part of the run's state, and a process that resumes or joins has it from its first step on,
behind the hooks that set it at the beginning of a training or of an epoch. What shares change is refused.

Carried are values that a checkpoint can hold, nested as they may be, and objects with a state_dict of their own, such
as modules. Anything else, a progress bar, a file, begins anew.
"""

from __future__ import annotations

import copy
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

import elastic_checkpoint
from elastic.errors import UNTOUCHED, StepError
from elastic.state.attributes import OF_MODULES, is_plain
from elastic_checkpoint.errors import UnsupportedValue
from elastic_checkpoint.format.kinds import is_stateful

_ABSENT: Any = object()
_EACH_PROCESS_S_OWN = (bool, str)
"""Who am I, and where do I write: as hooks of the beginning set it, and nobody has changed it since."""
_LONG = 64  # items of a list, which is taken for a history
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, deque, set, frozenset)
_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
_CONTAINERS = (*_SEQUENCES, *_MAPPINGS)
_OF_THE_RUN = (torch.optim.Optimizer, torch.utils.data.DataLoader, type)
_ITEMS_MAX = (1024, 32, 32, 32)  # that are looked at one by one, by depth; of more, whether they are as many


class Holder(NamedTuple):
    """An object whose attributes are looked at.

    name        what people call it
    holder      the object
    is_others   whether an attribute of this name and value is somebody else's to carry
    """

    name: str
    holder: Any
    is_others: Callable[[str, Any], bool]


class OwnAttributes:
    """
    holders  as they are now
    is_runs  whether an object is the run's: its model, say
    """

    def __init__(self, holders: Callable[[], Collection[Holder]], is_runs: Callable[[Any], bool]) -> None:
        self._holders = holders
        self._is_runs = is_runs
        self._built = self._marks(self._deep_holders())
        self._begun: dict[str, Any] = {}  # what hooks of the beginning have set, as they have set it
        self._objects: set[str] | None = None  # those that are there when the first step begins
        self._waiting: Mapping[str, Any] = {}
        self._lines: dict[str, _Lines] = {}

    def state_dict(self) -> dict[str, Any]:
        """What is no longer as the script built it, or as the hooks of the beginning would not set it again."""
        if self._waiting:
            return dict(self._waiting)
        values, histories, objects = {}, {}, {}
        holders = self._deep_holders()
        of_class = _of_classes(holders)
        for name, _, _, value in self._attributes(holders):
            if self._is_as_it_begins(name, value, of_class):
                continue
            if _is_value(value):
                with suppress(TypeError, UnsupportedValue):
                    if (text := self._history(name, value)) is not None:
                        histories[name] = text
                    else:
                        plain = _plain(value)
                        elastic_checkpoint.encode(plain)
                        values[name] = plain
                continue
            if self._objects is not None and name not in self._objects:
                raise _made_late(name, value)
            state = value.state_dict()
            with suppress(UnsupportedValue):
                elastic_checkpoint.encode(state)
                objects[name] = state
        found = {"values": values, "histories": histories, "objects": objects}
        return found if any(found.values()) else {}

    def _is_as_it_begins(self, name: str, value: Any, of_class: Callable[[str], Any]) -> bool:
        """Of objects but modules nobody knows whether they have changed."""
        if not _is_value(value) and not isinstance(value, torch.nn.Module):
            return False
        mark = _mark(value)
        if name not in self._begun:
            return bool(mark == (self._built[name] if name in self._built else of_class(name)))
        return type(value) in _EACH_PROCESS_S_OWN and bool(mark == self._begun[name])

    def _history(self, name: str, value: Any) -> str | None:
        """Of a long list, unless it holds tensors."""
        if type(value) is not list or len(value) <= _LONG:
            return None
        with suppress(TypeError):
            return self._lines.setdefault(name, _Lines()).text(value)
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """It holds from `begin_step` on: hooks of the beginning come first."""
        self._waiting = dict(state)

    def begin_step(self) -> None:
        """Before a step's hooks, or where none is left."""
        waiting, self._waiting = self._waiting, {}
        if self._objects is None:
            every = self._attributes(self._holders())
            self._objects = {name for name, _, _, value in every if not _is_value(value)}
            of_class = _of_classes(deep := self._deep_holders())
            for name, mark in self._marks(deep).items():
                if mark != (self._built[name] if name in self._built else of_class(name)):
                    self._begun[name] = mark
        if not waiting:
            return
        holders = self._deep_holders()
        there = {name: (holder, key, value) for name, holder, key, value in self._attributes(holders)}
        named = {one.name: one.holder for one in holders}
        histories = {name: _of_lines(text) for name, text in waiting["histories"].items()}
        for name, value in {**waiting["values"], **histories}.items():
            owner, _, key = name.rpartition(".")
            if owner in named:
                vars(named[owner])[key] = _filled(there[name][2] if name in there else None, value)
        for name, state in waiting["objects"].items():
            if name in there and self._is_object(there[name][2]):
                there[name][2].load_state_dict(state)

    def shares(self, step: int, where: str, state: str = UNTOUCHED) -> Callable[[], None]:
        """Before a step's shares. Gives what is called after each, and raises StepError for what it has changed.

        where, state  for the message: the code that shares run, and what became of the run
        """
        before = self._marks(self._holders())

        def check() -> None:
            if (now := self._marks(self._holders())) == before:
                return
            of_class = _of_classes(self._holders())
            marked = {name: before[name] if name in before else of_class(name) for name in {**now, **before}}
            if not (changed := [name for name, mark in marked.items() if now.get(name) != mark]):
                return
            (first, *others) = changed
            more = f" and {len(others)} more" if others else ""
            raise StepError(
                f"{where} changed {first}{more} in step {step}\n"
                "  found  it runs once for each of this worker's shares, and how many these are depends on the world "
                f"size\n{state}"
                "  next   count steps, and keep what is kept, in a hook that comes once a step; what is told of a "
                "batch is\n         added up over all workers: run.add(name=value * examples), and then run.sums; or a "
                "local variable"
            )

        return check

    def _marks(self, holders: Collection[Holder]) -> dict[str, Any]:
        return {name: _mark(value) for name, _, _, value in self._attributes(holders)}

    def _deep_holders(self) -> list[Holder]:
        """Also the modules that are held, and those within: a metric keeps in attributes what no state_dict has."""
        holders = list(self._holders())
        held = [
            (name, value)
            for name, _, _, value in self._attributes(holders)
            if isinstance(value, torch.nn.Module) and not _is_value(value)
        ]
        within = [
            Holder(f"{name}:{path}", module, lambda key, value: key in OF_MODULES or not is_plain(value))
            for name, value in held
            for path, module in value.named_modules()
        ]
        return holders + within

    def _attributes(self, holders: Collection[Holder]) -> Iterator[tuple[str, Any, str, Any]]:
        for name, holder, is_others in holders:
            for key, value in list(vars(holder).items()):
                if not is_others(key, value) and (_is_value(value) or self._is_object(value)):
                    yield f"{name}.{key}", holder, key, value

    def _is_object(self, value: Any) -> bool:
        return is_stateful(value) and not isinstance(value, _OF_THE_RUN) and not self._is_runs(value)


def by_class(objects: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(name, object): numbered within its class, so that one that only some workers have moves no other's name."""
    seen: Counter[str] = Counter()
    for one in objects:
        kind = type(one).__name__
        yield f"{kind}{seen[kind]}", one
        seen[kind] += 1


def _of_classes(holders: Collection[Holder]) -> Callable[[str], Any]:
    """Gives the mark of what an object has from its class, as long as it has not set it itself."""
    classes = {one.name: type(one.holder) for one in holders}

    def of_class(name: str) -> Any:
        owner, _, key = name.rpartition(".")
        value = getattr(classes[owner], key, _ABSENT) if owner in classes else _ABSENT
        return None if value is _ABSENT else _mark(value)

    return of_class


def _made_late(name: str, value: Any) -> StepError:
    return StepError(
        f"{name}, a {type(value).__name__}, was made in the midst of the training\n"
        "  found  a worker that joins, and a run that is resumed, have none to give its state to\n"
        "  state  what the run has applied stays\n"
        "  next   make it when the training begins: in __init__, or in the hook of the training's start"
    )


def _is_value(value: Any, depth: int = 0) -> bool:
    """Whether a checkpoint can hold it; of many items, as the first ones are."""
    kind = type(value)
    if kind in _SCALARS or isinstance(value, np.generic):
        return True
    if isinstance(value, torch.Tensor):
        return kind is torch.Tensor and value.layout is torch.strided
    if kind is np.ndarray:
        return bool(value.dtype.kind in "biufc")
    if depth == len(_ITEMS_MAX) or kind not in _CONTAINERS:
        return False
    items = chain(value, value.values()) if kind in _MAPPINGS else value
    return all(_is_value(item, depth + 1) for item in islice(items, _ITEMS_MAX[depth]))


def _mark(value: Any, depth: int = 0) -> Any:
    """What tells a change of it, as far as that is quickly told."""
    kind = type(value)
    if kind in (float, complex) or isinstance(value, np.generic):
        return kind, repr(value)  # in which what is no number is like itself
    if kind in _SCALARS:
        return kind, value
    if isinstance(value, torch.Tensor):
        return _Same(value), None if value.is_inference() else value._version
    if kind is np.ndarray:
        return _Same(value), xxhash.xxh3_128_digest(np.ascontiguousarray(value).data)
    if isinstance(value, torch.nn.Module):
        return _Same(value), [_mark(one) for one in (*value.parameters(), *value.buffers())]
    if kind not in _CONTAINERS:
        return _Same(value)
    if depth == len(_ITEMS_MAX) or len(value) > _ITEMS_MAX[depth]:
        return _Same(value), len(value)
    items = value.items() if kind in _MAPPINGS else value
    return kind, [_mark(item, depth + 1) for item in items]


class _Same:
    """Is like what is the same object; while this is held, no other one can be."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


class _Lines:
    """A long list as text, a line for each item. Of one that has grown only what is new is turned into text."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._lines: list[str] = []

    def text(self, values: list[Any]) -> str:
        """Raises TypeError for items with tensors, and UnsupportedValue."""
        if values[: len(self._items)] != self._items:
            self._items, self._lines = [], []
        for item in values[len(self._items) :]:
            document, tensors = elastic_checkpoint.encode(_plain(item))
            if tensors:
                raise TypeError(type(item))
            self._items.append(copy.deepcopy(item))
            self._lines.append(json.dumps(document))
        return "\n".join(self._lines)


def _of_lines(text: str) -> list[Any]:
    return [elastic_checkpoint.decode(json.loads(line), {}) for line in text.splitlines()]


def _plain(value: Any) -> Any:
    """As a checkpoint takes it: what it has no word for, as what is filled with it. TypeError: it cannot."""
    kind = type(value)
    if kind in _SCALARS or isinstance(value, (np.generic, np.ndarray)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach()
    if kind in (list, deque):
        return [_plain(item) for item in value]
    if kind is tuple:
        return tuple(_plain(item) for item in value)
    if kind in _MAPPINGS:
        return {_plain(key): _plain(item) for key, item in value.items()}
    if kind in (set, frozenset):
        return kind(_plain(item) for item in value)
    raise TypeError(kind)


def _filled(there: Any, value: Any) -> Any:
    """The value, in the container that is there, which others may hold."""
    kind = type(there)
    if isinstance(there, torch.Tensor) and isinstance(value, torch.Tensor):
        if there.shape == value.shape and there.dtype == value.dtype and not there.requires_grad:
            with torch.no_grad():
                return there.copy_(value)
        return value.clone().to(there.device)
    if kind in (list, deque) and type(value) is list:
        there.clear()
        there.extend(value)
        return there
    if kind in _MAPPINGS and isinstance(value, dict):
        filled = {key: _filled(there.get(key), item) for key, item in value.items()}
        there.clear()
        there.update(filled)
        return there
    return value.clone() if isinstance(value, torch.Tensor) else value

"""What a loader's order hangs on is kept before it is looked at, and put back.

Promises  what samplers hold in attributes and `__slots__`, their own and their class's, in lists, dicts, tensors and
          arrays, in helpers, closures and open files, random generators of Python, NumPy and torch among it, is as it
          was; so are the global generators. It is put back in its place: whoever else holds it, such as a `set_epoch`,
          sees it, too.
          What gives its values once, such as a generator's frame, is named: nobody can put it back.
Leaves    the examples of a data set, and what lies in models and optimizers. What a compiled library or a global
          variable keeps is not found: audit.py reads again what it has read, and sees whether that has changed.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import random
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import is_
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

BYTES_MAX = 2**30  # of tensors and arrays, copied; a larger one is more likely data than an order
_LOOKED_AT = 10**6  # objects: beyond are lists of data, some seconds away

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_CONTAINERS = (list, deque, dict, set, bytearray, array)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice})
_CLOSED = (type, ModuleType, torch.nn.Module, torch.optim.Optimizer, logging.Logger, logging.Handler, np.generic)
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
_HOLDERS = {"types", "argparse", "collections", "itertools", "functools"}  # whose objects hold what scripts put there
_PARTS = ("sampler", "batch_sampler", "generator", "dataset", "collate_fn")
_ABSENT = object()


class KeptState:
    """The state that a loader's order hangs on, as it is when this is made.

    Args:
        loaders: By name. Of a DataLoader that tells its indices, its samplers are kept.
        reads: Of these, those that are read from.
        callbacks: What is called between epochs.

    Attributes:
        once: Where the loaders hold something that gives its values once.
    """

    def __init__(self, loaders: Mapping[str, Any], reads: Iterable[str], callbacks: Iterable[Any]) -> None:
        self._undo: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {}  # holding them: an id is another object's when its own has gone
        self._under_way: list[tuple[dict[str, Any], list[str]]] = []
        self._bytes = 0
        self.once: list[str] = []
        self._globals()
        waiting: deque[tuple[str, Any]] = deque()
        for name, loader in loaders.items():
            waiting += self._of_loader(name, loader, name in reads)
        self._walk(waiting)
        once, self.once = self.once, []
        self._walk(deque(("set_epoch", callback) for callback in callbacks))
        self.once = once  # a callback changes no more than numbers of what it reaches

    def let_alone(self) -> None:
        """Hide iterations under way, with their loader processes, from the loaders: each look starts others."""
        for variables, names in self._under_way:
            variables.update(dict.fromkeys(names))

    def put_back(self) -> None:
        """Put back in its place all that was kept."""
        for undo in self._undo:
            undo()

    def _globals(self) -> None:
        """Keep the states of the global random generators."""
        self._undo.append(functools.partial(random.setstate, random.getstate()))
        self._undo.append(functools.partial(np.random.set_state, np.random.get_state()))
        self._generator(torch.default_generator)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._undo.append(functools.partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))

    def _of_loader(self, name: str, loader: Any, reads: bool) -> Iterator[tuple[str, Any]]:
        """Keep what a loader holds by itself; yield what it refers to, by name."""
        if not isinstance(loader, DataLoader):
            if reads:
                yield name, loader
            else:
                self._data_set(getattr(loader, "dataset", None))
            return
        self._variables(loader, vars(loader))
        for inner in _PARTS if reads else _PARTS[:3]:
            yield f"{name}.{inner}", getattr(loader, inner)
        self._seen[id(loader)] = loader
        if reads:
            open_ones = [key for key, value in vars(loader).items() if _is_iterator(value) and key not in _PARTS]
            self._under_way.append((vars(loader), open_ones))
        else:
            self._data_set(loader.dataset)

    def _walk(self, waiting: deque[tuple[str, Any]]) -> None:
        """Keep what these objects hold and all that they refer to, each object once."""
        while waiting and len(self._seen) < _LOOKED_AT:
            path, one = waiting.popleft()
            if type(one) not in _PLAIN and id(one) not in self._seen and not isinstance(one, _CLOSED):
                self._seen[id(one)] = one
                waiting += self._keep(path, one)

    def _keep(self, path: str, one: Any) -> Iterable[tuple[str, Any]]:
        """Keep what this object holds by itself; return what it refers to."""
        if isinstance(one, _GENERATORS):
            self._generator(one)
        elif isinstance(one, torch.Tensor | np.ndarray):
            return self._array(path, one)
        elif isinstance(one, io.IOBase):
            self._file(path, one)
        elif _is_iterator(one) and not isinstance(inspect.getattr_static(type(one), "__next__"), FunctionType):
            self.once.append(f"{path}, a {type(one).__name__}")
        elif isinstance(one, Dataset) and not isinstance(one, IterableDataset):
            self._data_set(one)
        elif isinstance(one, DataLoader):
            return self._of_loader(path, one, reads=True)
        elif isinstance(one, FunctionType):
            return self._function(path, one)
        elif isinstance(one, MethodType):
            return ((path.rpartition(".")[0] or path, one.__self__), (path, one.__func__))
        elif isinstance(one, functools.partial):
            return ((path, one.func), *((path, value) for value in (*one.args, *one.keywords.values())))
        elif isinstance(one, tuple | frozenset):
            return _each(path, one)
        else:
            return self._object(path, one)
        return ()

    def _object(self, path: str, one: Any) -> list[tuple[str, Any]]:
        """Keep an object's items, attributes and slots, and those of its class; return what they refer to."""
        found: list[tuple[str, Any]] = []
        if isinstance(one, _CONTAINERS):
            self._undo.append(functools.partial(_refill, one, list(one.items()) if isinstance(one, dict) else [*one]))
            found += _each(path, one.values() if isinstance(one, dict) else one)
        if _root(type(one)) in _LIBRARIES - _HOLDERS and not isinstance(one, _TORCH_DATA):
            return found
        variables = getattr(one, "__dict__", None)
        if type(variables) is dict:
            self._variables(one, variables)
            found += [(f"{path}.{name}", value) for name, value in variables.items()]
        for cls in type(one).__mro__:
            if "__slots__" in vars(cls):
                found += self._slots(path, one, cls)
            if _root(cls) not in _LIBRARIES and id(cls) not in self._seen:
                self._seen[id(cls)] = cls
                found += self._class(path, cls)
        return found

    def _variables(self, one: Any, variables: dict[str, Any]) -> None:
        """Keep which attributes there are, and what they refer to."""
        kept = dict(variables)

        def undo() -> None:
            for name in [name for name in variables if name not in kept]:
                del variables[name]
            variables.update({name: value for name, value in kept.items() if variables.get(name, _ABSENT) is not value})

        self._undo.append(undo)

    def _slots(self, path: str, one: Any, cls: type) -> Iterator[tuple[str, Any]]:
        """Keep and yield what the slots of a class refer to in this object."""
        for name, slot in list(vars(cls).items()):
            if isinstance(slot, MemberDescriptorType):
                value = getattr(one, name, _ABSENT)
                self._undo.append(functools.partial(_refill_slot, one, slot, value))
                yield f"{path}.{name}", value

    def _class(self, path: str, cls: type) -> Iterator[tuple[str, Any]]:
        """Keep a class's own attributes, but for special ones; yield them, and its methods to iterate and to call."""
        kept = {name: value for name, value in vars(cls).items() if not name.startswith("__")}

        def undo() -> None:
            for name, value in kept.items():
                if vars(cls).get(name, _ABSENT) is not value:
                    setattr(cls, name, value)
            for name in [name for name in vars(cls) if not name.startswith("__") and name not in kept]:
                delattr(cls, name)

        self._undo.append(undo)
        for name, value in [
            *kept.items(),
            *((name, vars(cls).get(name)) for name in ("__iter__", "__next__", "__call__")),
        ]:
            if isinstance(value, property):
                yield f"{path}.{name}", value.fget
            elif not isinstance(value, MemberDescriptorType):
                yield f"{path}.{name}", getattr(value, "__func__", value)

    def _function(self, path: str, one: FunctionType) -> Iterator[tuple[str, Any]]:
        """Keep and yield what a function encloses; yield also the generators among the globals that it names."""
        if _root(one) in _LIBRARIES:
            return
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            value = _of_cell(cell)
            self._undo.append(functools.partial(_refill_cell, cell, value))
            yield f"{path}: {name}", value
        yield from _each(path, (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()))
        self._variables(one, vars(one))
        for name in _names(one.__code__):
            value = one.__globals__.get(name)
            if isinstance(value, _GENERATORS) or (
                isinstance(value, FunctionType) and value.__module__ == one.__module__
            ):
                yield name, value

    def _data_set(self, one: Any) -> None:
        """Keep a data set's attributes and generators: no example of it is read, and it may be large."""
        self._seen[id(one)] = one
        variables = getattr(one, "__dict__", None)
        if type(variables) is not dict:
            return
        self._variables(one, variables)
        for value in variables.values():
            if isinstance(value, Dataset) and id(value) not in self._seen:
                self._data_set(value)
            elif isinstance(value, _GENERATORS) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._generator(value)
            for held in value if type(value) in (tuple, list) and len(value) < 1000 else (value,):
                if isinstance(held, torch.Tensor | np.ndarray):
                    self._seen[id(held)] = held

    def _generator(self, one: Any) -> None:
        """Keep the state of a random generator, if it has one."""
        if isinstance(one, np.random.Generator):
            self._generator(one.bit_generator)
        elif isinstance(one, np.random.BitGenerator):
            state = one.state
            self._undo.append(lambda: setattr(one, "state", state))
        elif isinstance(one, random.Random):
            with suppress(NotImplementedError):  # of the system's entropy
                self._undo.append(functools.partial(one.setstate, one.getstate()))
        else:
            self._undo.append(functools.partial(one.set_state, one.get_state()))

    def _array(self, path: str, one: Any) -> Iterable[tuple[str, Any]]:
        """Keep a copy of the values, unless they are mapped from a file or may not be written: those do not change."""
        if isinstance(one, np.ndarray) and not isinstance(one, np.memmap) and one.flags.writeable:
            if one.nbytes + self._bytes <= BYTES_MAX:
                self._bytes += one.nbytes
                self._undo.append(functools.partial(_refill_array, one, one.copy()))
            return _each(path, one.ravel().tolist()) if one.dtype == object else ()
        strided = isinstance(one, torch.Tensor) and one.layout is torch.strided and not one.is_meta
        if strided and one.nbytes + self._bytes <= BYTES_MAX:
            self._bytes += one.nbytes
            self._undo.append(functools.partial(_refill_tensor, one, one.detach().clone()))
        return ()

    def _file(self, path: str, one: io.IOBase) -> None:
        """Keep the place in an open file; one without a place gives its values once."""
        if one.closed or not one.readable():
            return
        try:
            self._undo.append(functools.partial(one.seek, one.tell()))
        except (OSError, ValueError):
            self.once.append(f"{path}, a {type(one).__name__}")


_TORCH_DATA = (torch.utils.data.Sampler, Dataset, DataLoader)


def _root(one: Any) -> str:
    return str(getattr(one, "__module__", "")).partition(".")[0]


def _is_iterator(one: Any) -> bool:
    return hasattr(type(one), "__next__")


def _each(path: str, values: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(path, value) for value in values if type(value) not in _PLAIN]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of global variables and attributes that code uses, in functions within it, too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _refill(one: Any, kept: list[Any]) -> None:
    """Put a container's items back, unless it still holds the very same ones."""
    if isinstance(one, dict):
        now = [part for item in one.items() for part in item]
        then = [part for item in kept for part in item]
    else:
        now, then = [*one], kept
    if len(now) == len(then) and all(map(is_, now, then)):
        return
    # In place: whoever else holds it, such as a `set_epoch`, sees it, too.
    if isinstance(one, array):
        one[:] = array(one.typecode, kept)
    elif isinstance(one, list | bytearray):
        one[:] = kept
    elif isinstance(one, dict):
        one.clear()
        for key, value in kept:
            one[key] = value
    else:
        one.clear()
        (one.extend if isinstance(one, deque) else one.update)(kept)


def _refill_slot(one: Any, slot: Any, value: Any) -> None:
    if value is not _ABSENT:
        slot.__set__(one, value)
    else:
        with suppress(AttributeError):
            slot.__delete__(one)


def _of_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _refill_cell(cell: CellType, value: Any) -> None:
    if value is not _ABSENT and _of_cell(cell) is not value:
        cell.cell_contents = value


def _refill_array(one: Any, kept: Any) -> None:
    if one.tobytes() != kept.tobytes():
        one[...] = kept


def _refill_tensor(one: torch.Tensor, kept: torch.Tensor) -> None:
    if not torch.equal(one.detach(), kept):
        with torch.no_grad():
            one.copy_(kept)

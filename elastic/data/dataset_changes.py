"""Has the script changed its data set since loader processes were forked with a copy of it? A curriculum, an epoch's
number, another transform.

Looked at are the attributes of the data set and the collate function, and of what these hold (transforms, lists of
them, other data sets): which objects they are, of plain values which value, and of tensors the version. Not noticed is
what changes within other objects, such as a NumPy array.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import is_
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from elastic.state.attributes import is_plain, is_same

_HOLDERS = 256  # objects, of which the first ones are the nearest
_LOOKED_AT = 10_000  # objects
_OF_MODULES = ("_buffers", "_parameters")  # training moves them; a collate function may hold the model
_ITEMS = 64  # of a list: a longer one holds data
_OTHERS_OWN = ("elastic", "datasets", "pyarrow")
_CLOSED = (str, bytes, int, float, torch.Tensor, np.ndarray, type, ModuleType)


class DatasetChanges:
    """
    holders_of  what gives the objects that are looked at, of these roots
    """

    def __init__(self, *roots: Any, holders_of: Callable[[tuple[Any, ...]], Iterable[Any]] | None = None) -> None:
        found = (holders_of or holders)(roots)
        self._noted = [(type(holder).__name__, _Noted(vars(holder))) for holder in found]

    def any(self) -> bool:
        """Since this was made."""
        return any(noted.changed() for _, noted in self._noted)

    def names(self) -> list[str]:
        """Of what was set to another value, each with the type that has it. Not of what came or went, or became another
        object: a cache, a handle."""
        return [f"{kind}.{name}" for kind, noted in self._noted if noted.changed() for name in noted.names()]


class _Noted:
    """Attributes of one object as they are now."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._now = attributes
        self._then = dict(attributes)
        self._within = {
            key: seen
            for key, value in attributes.items()
            if key not in _OF_MODULES and (seen := _within(value)) is not None
        }

    def changed(self) -> bool:
        now, then = self._now, self._then
        if now.keys() != then.keys():
            return True
        if not all(map(is_, now.values(), then.values())) and any(
            value is not then[key] and not _is_same(value, then[key]) for key, value in now.items()
        ):
            return True
        return any(_within(now[key]) != seen for key, seen in self._within.items())

    def names(self) -> list[str]:
        now, then = self._now, self._then
        return [
            key
            for key, value in then.items()
            if key in now
            and (
                (now[key] is not value and is_plain(value) and is_plain(now[key]) and not _is_same(now[key], value))
                or (key in self._within and _within(now[key]) != self._within[key])
            )
        ]


def package_of(one: Any) -> str:
    return str(type(one).__module__).partition(".")[0]


def _within(value: Any) -> Any:
    """What tells whether it has changed, while it is the same object; None: it cannot, or nobody would know."""
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if type(value) not in (list, dict, tuple) or not is_plain(value):
        return None
    items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
    if not any(isinstance(item, torch.Tensor) for _, item in items):
        return repr(value) if type(value) is not tuple else None
    return [(key, item._version if isinstance(item, torch.Tensor) else repr(item)) for key, item in items]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or not (is_plain(one) and is_plain(other)):
        return False
    return is_same(one, other)


def data_sets(roots: tuple[Any, ...]) -> Iterator[Any]:
    """The data sets alone: the script's, and those that Subset and the like are made of."""
    waiting, seen = deque(roots), set[int]()
    while waiting and len(seen) < _ITEMS:
        one = waiting.popleft()
        if id(one) in seen or not isinstance(getattr(one, "__dict__", None), dict) or package_of(one) in _OTHERS_OWN:
            continue
        seen.add(id(one))
        yield one
        waiting.append(vars(one).get("dataset"))
        if isinstance(several := vars(one).get("datasets"), (list, tuple)):
            waiting.extend(several[:_ITEMS])


_TRANSFORMS = ("transform", "transforms", "target_transform")


def data_sets_and_transforms(roots: tuple[Any, ...]) -> Iterator[Any]:
    """The data sets, then what stands under the names that torchvision gives to transforms, and in lists of these."""
    found = [*data_sets(roots)]
    yield from found
    waiting, seen = deque(found), set(map(id, found))
    while waiting and len(seen) < _ITEMS:
        one = waiting.popleft()
        for name in _TRANSFORMS:
            held = vars(one).get(name)
            for transform in held[:_ITEMS] if isinstance(held, (list, tuple)) else (held,):
                if id(transform) not in seen and isinstance(getattr(transform, "__dict__", None), dict):
                    seen.add(id(transform))
                    waiting.append(transform)
                    yield transform


def holders(roots: tuple[Any, ...], *, beside: Collection[str] = ()) -> Iterator[Any]:
    """Objects with attributes, each once; the nearest first. beside: packages whose objects are not looked into"""
    waiting, seen, found = deque(roots), set[int](), 0
    while waiting and found < _HOLDERS and len(seen) < _LOOKED_AT:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _CLOSED) or package_of(one) in beside:
            continue
        seen.add(id(one))
        if isinstance(one, dict):  # no other mapping, which may be an open file
            waiting.extend(one.values() if len(one) <= _ITEMS else ())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one if len(one) <= _ITEMS else ())
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        elif isinstance(one, functools.partial):
            waiting.extend((one.func, one.args, one.keywords))
        elif isinstance(getattr(one, "__dict__", None), dict):
            found += 1
            yield one
            waiting.extend(vars(one).values())

"""Finds out whether the script has changed its data set since loader processes were forked with a copy of it.

Such a change is a curriculum's, an epoch's number, another transform.
Looked at are the attributes of the data set and the collate function, and of what these hold (transforms, lists of
them, other data sets): which objects they are, of plain values which value, and of tensors the version. Not noticed is
what changes within other objects, such as a NumPy array.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from operator import is_
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_HOLDERS = 256  # objects, of which the first ones are the nearest
_LOOKED_AT = 10_000  # objects
_OF_MODULES = ("_buffers", "_parameters")  # training moves them; a collate function may hold the model
_ITEMS = 64  # of a list: a longer one holds data
_SCALARS = (bool, int, float, complex, str, type(None), np.number, np.bool_)
_CLOSED = (str, bytes, int, float, torch.Tensor, np.ndarray, type, ModuleType)


class DatasetChanges:
    """The attributes of the data set and the collate function, the `roots`, noted to see whether they change."""

    def __init__(self, *roots: Any) -> None:
        self._noted = [_Snapshot(vars(holder)) for holder in _holders(roots)]

    def any(self) -> bool:
        """Return whether an attribute has changed since this was made."""
        return any(noted.changed() for noted in self._noted)


class _Snapshot:
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
        """Tell whether attributes came or went, are others, or have changed within."""
        now, then = self._now, self._then
        if now.keys() != then.keys():
            return True
        if not all(map(is_, now.values(), then.values())) and any(
            value is not then[key] and not _is_same(value, then[key]) for key, value in now.items()
        ):
            return True
        return any(_within(now[key]) != seen for key, seen in self._within.items())


def _within(value: Any) -> Any:
    """Return a mark that changes when the object's content does; None: it cannot change, or nobody would know."""
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if type(value) not in (list, dict, tuple) or len(value) > _ITEMS:
        return None
    items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
    return [(key, _within(one) if isinstance(one, torch.Tensor) else _said(one)) for key, one in items]


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and isinstance(one, (*_SCALARS, tuple, list)) and _said(one) == _said(other)


def _said(value: Any) -> Any:
    """Return a plain value as text; of any other object which one it is."""
    if type(value) in (tuple, list) and len(value) <= _ITEMS:
        return [*map(_said, value)]
    return repr(value) if isinstance(value, _SCALARS) else id(value)


def _holders(roots: tuple[Any, ...]) -> Iterator[Any]:
    """Yield objects with attributes, each once; the nearest first."""
    waiting, seen, found = deque(roots), set[int](), 0
    while waiting and found < _HOLDERS and len(seen) < _LOOKED_AT:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _CLOSED):
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

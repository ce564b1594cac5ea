"""What a script changes in its data set between two steps: a curriculum's number, the scale of an augmentation.

Which examples training sees depends on it, and no sampler's state has it. So it travels with the state, as what modules
keep does (attributes.py), and what is done to it at an epoch's beginning is done once (passed_beginning.py).

Carried are numbers, strings, None, and short tuples, lists and dicts of these, of the data set, of those that it is
made of (Subset and the like), and of their transforms. Not what reading an example changes, a count of reads or a place
in an open file: each worker has its own of that. Nor tensors and arrays: they are data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from operator import is_
from typing import Any

import torch

from elastic.state.attributes import ABSENT, OF_MODULES, Attributes, Noted, is_plain

_NONE: Set[str] = frozenset()
_OF_MODULES = OF_MODULES - {"training"}
_LOOKED_WITHIN = 16  # reads, the first ones: later ones are looked at for other objects alone


class DatasetAttributes(Attributes):
    """Also a context for each read in this process.

    data_sets  the script's first, those that it is made of, and transforms; looked up anew at each step
    """

    def __init__(self, data_sets: Callable[[], Iterable[Any]]) -> None:
        super().__init__(self._walked)
        self._data_sets = data_sets
        self._found: list[Any] = []
        self._before: list[tuple[Any, dict[str, Any], dict[str, str]]] = []
        self._of_reading: dict[int, set[str]] = {}
        self._reads = 0

    def __enter__(self) -> None:
        """An example is read, in this process: what changes until `__exit__` is reading's own, from here on."""
        closely = self._reads < _LOOKED_WITHIN
        self._before = [(one, dict(vars(one)), _within(one) if closely else {}) for one in self._found]

    def __exit__(self, *_: object) -> None:
        closely = self._reads < _LOOKED_WITHIN
        self._reads += 1
        for one, then, within in self._before:
            changed = _changed(then, vars(one)) | (_changed(within, _within(one)) if closely else _NONE)
            if changed:
                self._of_reading.setdefault(id(one), set()).update(changed)

    def now(self) -> dict[str, str]:
        """What is carried: name -> its value as people read it."""
        found = {}
        for _, path, key, value in self.changed():
            name = f"{type(self._found[int(path)]).__name__} {path}.{key}" if path else key
            found[name] = repr(value)
        return found

    def _walked(self) -> list[tuple[str, str, Any]]:
        self._found = [*self._data_sets()]
        return [("dataset", str(number) if number else "", one) for number, one in enumerate(self._found)]

    def passed_over(self, data_set: Any) -> frozenset[str]:
        of_modules = _OF_MODULES if isinstance(data_set, torch.nn.Module) else _NONE  # transforms may be some
        return frozenset(key for key, value in vars(data_set).items() if key in of_modules or not _is_carried(value))

    def changed_of(self, noted: Noted) -> Iterator[tuple[str, Any]]:
        of_reading = self._of_reading.get(id(noted.module), ())
        return ((key, one) for key, one in super().changed_of(noted) if key not in of_reading and _is_carried(one))


def _is_carried(value: Any) -> bool:
    if not is_plain(value) or isinstance(value, torch.Tensor):
        return False
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return not any(isinstance(item, torch.Tensor) for item in items)


def _within(data_set: Any) -> dict[str, str]:
    """What tells that something has changed within what stays the same object."""
    held = vars(data_set).items()
    return {key: sys.intern(repr(one)) for key, one in held if isinstance(one, (list, dict)) and _is_carried(one)}


def _changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> Set[str]:
    """Names under which another object is, or none."""
    if then.keys() == now.keys() and all(map(is_, then.values(), now.values())):
        return _NONE
    return {key for key in then.keys() | now.keys() if then.get(key, ABSENT) is not now.get(key, ABSENT)}

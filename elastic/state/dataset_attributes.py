"""What a script changes in its data set between two steps: a curriculum's number, the strength of an augmentation.

Which examples training sees depends on it, and no sampler's state has it: who joins, and a run that is resumed, has the
data set as the script builds it. A script that sets it at each epoch's beginning, from the epoch's number, is right by
itself; one that counts on (`level *= 1.1`) is not. So the state says what was changed, and where it is something else
here, at the first step in an epoch's midst, people are told. It is not set: what hangs on it (an order that was drawn
anew, a file that was opened) would not follow, and a setter that finds the number which it is given does nothing.

Looked at are numbers, strings and tuples of these, of the data set, of those that it is made of (Subset and the like),
and of their transforms. Not what reading an example changes, a count of reads or a place in an open file, nor what was
built as None, a cache: each worker has its own of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

import numpy as np

from elastic.state.attributes import ABSENT, is_same

_OBJECTS_MAX = 16
_ATTRIBUTES_MAX = 256  # an object of more holds data
_ITEMS_MAX = 64  # of a tuple: likewise
_IMMUTABLE = (bool, int, float, complex, str, *(np.float64, np.float32, np.int64, np.int32, np.bool_))
_TELL_MAX = 4  # names

Values = dict[str, Any]


class _Holder:
    """A data set, or a transform. built: its attributes as the script's loop began   of_reading: names that reading
    changes"""

    def __init__(self, name: str, one: Any) -> None:
        self.name, self.one = name, one
        self.built: Values = dict(vars(one))
        self.of_reading: set[str] = set()

    def changed(self) -> Values:
        names = _others(self.built, vars(self.one)) - self.of_reading
        if not names:
            return {}
        now = dict(vars(self.one))
        return {
            key: now[key]
            for key in sorted(names & now.keys(), key=str)
            if _is_looked_at(self.built.get(key)) and _is_looked_at(now[key]) and not is_same(now[key], self.built[key])
        }


class DatasetAttributes:
    """Also a context for each read in this process.

    objects  the data set, those that it is made of, and transforms
    warn     tells people
    """

    def __init__(
        self, objects: Callable[[], Iterable[Any]] = tuple, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._objects = objects
        self._warn = warn
        self._in_loop = False
        self._holders: list[_Holder] = []
        self._came: Values = {}  # the state's, until the first step
        self._also: set[str] = set()
        self._before: list[tuple[_Holder, Values]] = []

    def begin_loop(self) -> None:
        if self._in_loop:
            return
        self._in_loop = True
        for number, one in enumerate(itertools.islice(self._objects(), _OBJECTS_MAX)):
            if len(vars(one)) <= _ATTRIBUTES_MAX:
                self._holders.append(_Holder(f"{type(one).__name__} {number}." if number else "", one))

    def step_begins(self, *, in_midst: bool) -> None:
        """What its examples are read by stands. in_midst: of an epoch, so that the script has passed its beginning, as
        the state had"""
        if not self._came:
            return
        came, self._came = self._came, {}
        now = {holder.name + str(key): one for holder in self._holders for key, one in vars(holder.one).items()}
        own = {holder.name + str(key) for holder in self._holders for key in holder.of_reading}
        others = [
            f"{name} was {value!r} and is {now[name]!r}"
            for name, value in came.items()
            if name in now.keys() - own and not (_is_looked_at(now[name]) and is_same(now[name], value))
        ]
        if in_midst and others:
            self._warn(
                f"the data set is not what it was where the state comes from: {'; '.join(others[:_TELL_MAX])}\n"
                "  found  the loop has changed it there; a data set is not part of the state\n"
                "  next   nothing, if no example depends on it; else set it as each epoch begins, from its number"
            )

    def __enter__(self) -> None:
        """An example is read, in this process: what changes until `__exit__` is reading's own, from here on."""
        self._before = [(holder, dict(vars(holder.one))) for holder in self._holders]

    def __exit__(self, *_: object) -> None:
        for holder, then in self._before:
            holder.of_reading |= _others(then, vars(holder.one))

    def now(self) -> dict[str, str]:
        """What is compared with other workers: name -> its value as people read it."""
        found = {}
        for holder in self._holders:
            also = {key for key in holder.built if holder.name + str(key) in self._also}
            for key in {*holder.changed(), *also} - holder.of_reading:
                if _is_looked_at(value := vars(holder.one).get(key, ABSENT)):
                    found[holder.name + str(key)] = repr(value)
        return found

    def compare_also(self, names: Iterable[str]) -> None:
        """What has changed elsewhere; here the script may have built it as it is there now."""
        self._also.update(names)

    def state_dict(self) -> Values:
        if not self._in_loop:
            return self._came
        return dict(self._changed())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of a run that goes on in this process nothing is made."""
        if not self._in_loop:
            self._came = dict(state)

    def _changed(self) -> Iterator[tuple[str, Any]]:
        for holder in self._holders:
            for key, value in holder.changed().items():
                yield holder.name + str(key), value


def _is_looked_at(value: Any) -> bool:
    kind = type(value)
    if kind is tuple:
        return len(value) <= _ITEMS_MAX and all(type(one) in _IMMUTABLE for one in value)
    return kind in _IMMUTABLE


def _others(then: Values, now: Values) -> set[str]:
    """Names under which another object is, or none, or one is new."""
    if now.keys() == then.keys() and all(map(is_, now.values(), then.values())):
        return set()
    now = dict(now)  # a thread of the script's may go on
    return {key for key in now.keys() | then.keys() if now.get(key, ABSENT) is not then.get(key, ABSENT)}

"""What a script changes in its data set between two steps: a curriculum's number, the strength of an augmentation.

Which examples training sees depends on it, and no sampler's state has it. So it travels with the state:

    carried   numbers, strings, None and tuples of these, of the data set, of those that it is made of (Subset and the
              like), and of their transforms
    expected  those that were changed together with something that cannot travel (an order that was drawn anew, a file
              that was opened): they are not set, since the other would not follow. Where they are others on a worker
              that has come, people are told
    its own   what reading an example changes: a count of reads, a place in an open file

A script that comes into the midst of an epoch sets what it sets at an epoch's beginning by itself, and often that is
right: the epoch's number. So nothing is set before; afterwards what is still another is (`level *= 1.1`), but for a
string that the script has just set, such as a folder of this process's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np

from elastic.state.attributes import ABSENT, is_same

_OBJECTS_MAX = 16
_ATTRIBUTES_MAX = 256  # a holder of more holds data
_ITEMS_MAX = 64  # of a tuple: likewise
_IMMUTABLE = (bool, int, float, complex, str, type(None), *(np.float64, np.float32, np.int64, np.int32, np.bool_))
_TELL_MAX = 4  # names

Values = dict[str, Any]


@dataclass
class _Holder:
    """A data set, or a transform.

    built       its attributes as the script's loop began
    last        when they were looked at last
    of_reading  names that reading changes
    bound       names that were changed together with what is not carried
    """

    name: str
    one: Any
    built: Values = field(init=False)
    last: Values = field(init=False)
    of_reading: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.built, self.last = dict(vars(self.one)), dict(vars(self.one))

    def look(self) -> None:
        """What has changed since the last look, the script has changed."""
        if not (changed := _others(self.last, vars(self.one))):
            return
        self.last = dict(vars(self.one))
        changed -= self.of_reading
        if not all(_is_carried(self.last.get(key, ABSENT)) for key in changed):
            self.bound |= changed

    def changed(self) -> Values:
        """Those that may be carried or expected, and are no longer as built."""
        if not (changed := _others(self.built, vars(self.one)) - self.of_reading):
            return {}
        now = dict(vars(self.one))
        return {key: now[key] for key in sorted(changed) if self.is_changed(now, key)}

    def is_changed(self, then: Values, key: str) -> bool:
        """Whether it had been by then."""
        return _is_carried(then.get(key, ABSENT)) and not _is_same(then.get(key), self.built.get(key, ABSENT))

    def set(self, key: str, value: Any) -> None:
        """ABSENT: there is none."""
        for attributes in (vars(self.one), self.last):
            attributes.pop(key, None) if value is ABSENT else attributes.__setitem__(key, value)


class DatasetAttributes:
    """Also a context for each read in this process.

    objects  the data set, those that it is made of, and transforms; looked up anew at each step
    warn     tells people
    """

    def __init__(
        self, objects: Callable[[], Iterable[Any]] = tuple, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._objects = objects
        self._warn = warn
        self._in_loop = False
        self._holders: list[_Holder] = []
        self._carries = True
        self._told = False
        self._came: dict[str, Values] = {}  # the state that did, until the first step
        self._own: list[tuple[_Holder, str, Any]] = []  # what stood where it was set
        self._also: set[str] = set()
        self._before: list[tuple[_Holder, Values]] = []

    def begin_loop(self) -> None:
        if self._in_loop:
            return
        self._in_loop = True
        found = [*itertools.islice(self._objects(), _OBJECTS_MAX + 1)]
        self._carries = len(found) <= _OBJECTS_MAX
        numbered = [(number, one) for number, one in enumerate(found) if len(vars(one)) <= _ATTRIBUTES_MAX]
        self._holders = [_Holder(f"{type(one).__name__} {number}." if number else "", one) for number, one in numbered]
        self._set(self._carried_came())

    def leave_as_built(self) -> None:
        """The script comes to the beginning of an epoch that its state is past, and is to find what it has built."""
        for holder, key, value in self._own:
            holder.set(key, value)

    def passed_beginning(self) -> None:
        """After that: what the script has not set as it should be, is."""
        self._look()
        changed = ((holder.name + key, one) for holder in self._holders for key, one in holder.changed().items())
        of_this_process = {name for name, value in changed if isinstance(value, str)}
        self._set({name: value for name, value in self._carried_came().items() if name not in of_this_process})

    def step_begins(self) -> None:
        """What its examples are read by stands."""
        if self._carries:
            held = [holder.one for holder in self._holders]
            self._carries = all(any(one is known for known in held) for one in self._objects() if _is_watched(one))
        self._look()
        if (expected := self._came.get("expected", {})) and not self._told:
            self._tell_of_others(expected)
        if not self._carries and not self._told and any(holder.changed() for holder in self._holders):
            self._tell_of_many()
        self._came, self._own = {}, []

    def __enter__(self) -> None:
        """An example is read, in this process: what changes until `__exit__` is reading's own, from here on."""
        self._before = [(holder, dict(vars(holder.one))) for holder in self._holders]

    def __exit__(self, *_: object) -> None:
        for holder, then in self._before:
            if new := _others(then, vars(holder.one)) - holder.of_reading:
                holder.of_reading |= new
                self._tell_of_both([holder.name + key for key in sorted(new) if holder.is_changed(then, key)])

    def now(self) -> dict[str, str]:
        """What is compared with other workers: name -> its value as people read it. Not what was built as nothing: a
        cache."""
        found = {}
        for holder in self._holders if self._carries else ():
            also = (key for key in holder.built if holder.name + key in self._also)
            for key in {*holder.changed(), *also} - holder.bound - holder.of_reading:
                value = vars(holder.one).get(key, ABSENT)
                if _is_carried(value) and holder.built.get(key) is not None:
                    found[holder.name + key] = repr(value)
        return found

    def compare_also(self, names: Iterable[str]) -> None:
        """What has changed elsewhere; here the script may have built it as it is there now."""
        self._also.update(names)

    def state_dict(self) -> dict[str, Values]:
        if not self._in_loop:
            return self._came
        self._look()
        found: dict[str, Values] = {"carried": {}, "expected": {}}
        for holder in self._holders if self._carries else ():
            for key, value in holder.changed().items():
                found["expected" if key in holder.bound else "carried"][holder.name + key] = value
        return {kind: values for kind, values in found.items() if values}

    def load_state_dict(self, state: Mapping[str, Values]) -> None:
        if not self._in_loop:
            self._came = {kind: dict(values) for kind, values in state.items()}
            return
        self._look()
        carried: Values = state.get("carried", {})
        for holder in self._holders:
            for key in holder.changed().keys() & holder.built.keys() - holder.bound:
                if holder.name + key not in carried:
                    holder.set(key, holder.built[key])
        self._set(carried)

    def _carried_came(self) -> Values:
        return self._came.get("carried", {})

    def _set(self, carried: Values) -> None:
        self._own = []
        for name, value in carried.items():
            for holder, key, own in self._at(name):
                if not _is_same(own, value):
                    self._own.append((holder, key, own))
                    holder.set(key, value)

    def _at(self, name: str) -> Iterator[tuple[_Holder, str, Any]]:
        of, _, key = name.rpartition(".")
        for holder in self._holders:
            if holder.name == (f"{of}." if of else ""):
                yield holder, key, vars(holder.one).get(key, ABSENT)

    def _look(self) -> None:
        for holder in self._holders:
            holder.look()

    def _tell_of_others(self, expected: Values) -> None:
        others = [
            f"{name} was {value!r} and is {'not there' if own is ABSENT else repr(own)}"
            for name, value in expected.items()
            for holder, key, own in self._at(name)
            if key not in holder.of_reading and not _is_same(own, value)
        ]
        if others:
            self._told = True
            self._warn(
                f"the data set is not what it was where the state comes from: {'; '.join(others[:_TELL_MAX])}\n"
                "  found  it was changed there together with what cannot be carried, so it is as the script has it\n"
                "  next   nothing, if no example depends on it; else set it as each epoch begins, from its number"
            )

    def _tell_of_both(self, names: list[str]) -> None:
        if not names or self._told:
            return
        self._told = True
        self._warn(
            f"both the loop and reading an example have changed the data set: {', '.join(names[:_TELL_MAX])}\n"
            "  found  what reading changes is each worker's own: it is not carried to who joins, nor to a run that is "
            "resumed\n"
            "  next   nothing, if no example depends on it; else leave it to the loop alone"
        )

    def _tell_of_many(self) -> None:
        self._told = True
        names = [holder.name + key for holder in self._holders for key in holder.changed()]
        self._warn(
            f"the loop changes its data set: {', '.join(names[:_TELL_MAX])}\n"
            f"  found  one of more than {_OBJECTS_MAX} objects, or of others than at first, is not carried:\n"
            "         who joins, and a run that is resumed, has it as the script builds it\n"
            "  next   nothing, if no example depends on it, or if it is set as each epoch begins, from its number"
        )


def _is_watched(one: Any) -> bool:
    return len(vars(one)) <= _ATTRIBUTES_MAX


def _is_carried(value: Any) -> bool:
    kind = type(value)
    return kind in _IMMUTABLE or (
        kind is tuple and len(value) <= _ITEMS_MAX and all(type(one) in _IMMUTABLE for one in value)
    )


def _is_same(one: Any, other: Any) -> bool:
    return _is_carried(one) and _is_carried(other) and is_same(one, other)


def _others(then: Values, now: Values) -> set[str]:
    """Names under which another object is, or none, or one is new."""
    if now.keys() == then.keys() and all(map(is_, now.values(), then.values())):
        return set()
    now = dict(now)  # a thread of the script's may go on
    return {key for key in now.keys() | then.keys() if now.get(key, ABSENT) is not then.get(key, ABSENT)}

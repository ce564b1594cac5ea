"""Does an example depend on what was read before it? Asked of the first ones that a process reads, and of their batch.

How many examples a process has read, and in which order, depends on the world size, on recoveries and on what was read
ahead. What a data set or a collate function keeps of one read for the next (a count, the last image, a running mean, an
iterator that `dataset[i]` draws from) makes the result depend on that, too. Most of what is kept is harmless: an opened
file, a cache, a log. So where a read has changed an attribute it is made once more, with the same random numbers, and
the very first one always is, and the first batch, since what it draws from a clock, a global or an unseeded generator
shows nowhere: what is not the same is refused, and so is what draws fewer of them, for it was kept from the first time:
of a random number that is cached, the epoch in which this process came to read it would decide.

Promises  no second read but the first example's and batch's where none of the attributes that are looked at has
          changed, and where no large array of NumPy's may be written to: nobody sees whether it was. Nothing is
          written to but counts and lists of data sets and of the collate function that both reads have changed alike:
          who keeps account of reads has each once. Objects of this package, which a data set may hold, are not looked
          into, nor are loggers.
Leaves    what is kept in closures, globals and files and shows later; what a later read than the next depends on; data
          sets that hold threads or queues; what is made of objects whose bytes are not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np
import torch

from elastic.data.dataset_changes import holders, package_of
from elastic.data.example_digest import digest_of
from elastic.data.own_generators import OwnGenerators
from elastic.errors import ReadOrderError
from elastic.state.randomness import default_streams, set_default_streams
from elastic.state.trained_set import listed

_EXAMPLES = 4  # that are asked, and a batch
_ITEMS_MAX = 10_000  # of a container
_BYTES_MAX = 1 << 20  # of an array
_OF_THREADS = ("threading", "queue", "multiprocessing", "concurrent", "asyncio")
_BESIDE = ("elastic", "elastic_checkpoint", "logging")  # packages whose objects are not looked into: ours, and loggers


class ReadAgain:
    """
    dataset, collate_fn  as the script has made them
    """

    def __init__(self, dataset: Any, collate_fn: Any) -> None:
        self._roots = dataset, collate_fn
        self._asked = 0
        self.may_collate_again = collate_fn is not None
        """Whether the collate function is one of the script's, which may keep something."""

    @property
    def enough(self) -> bool:
        """A few were asked."""
        return self._asked >= _EXAMPLES

    def call(self, what: str, read: Callable[[], Any], own: OwnGenerators, *, always: bool = False) -> Any:
        """What `read` returns; it may be called twice.

        what    "dataset[7]", for the error
        own     the generators that `read` draws from, beside the default ones
        always  whatever has changed, as the first of all

        Raises ReadOrderError, and what the first `read` raises.
        """
        self._asked += 1
        before = self._attributes()
        given = read()
        changed = [name for attributes in before for name in attributes.changed()]
        if not changed and (not before or not (always or self._asked == 1)):
            return given
        where = "one of these" if changed else "a global or a closure"
        makes = f"making it has changed {listed(changed)}" if changed else "none of the attributes has changed"
        drawn = own.state(), default_streams()
        same = self._is_the_same(given, read, before)
        again = own.state(), default_streams()
        own.set_state(drawn[0])  # the batch's random numbers follow the example's, also where the second read raised
        set_default_streams(drawn[1])
        if same is False:
            raise ReadOrderError(
                f"{what} gave something else when it was made a second time\n"
                f"  found     {makes}: it depends on what was read before, in {where}; or\n"
                "            on a clock, or on random numbers that nobody has seeded, as of default_rng();\n"
                "            how many examples a process reads, and in which order, depends on the world size"
            )
        if same is not None and digest_of(drawn) != digest_of(again):
            raise ReadOrderError(
                f"{what} drew random numbers, and others or none when it was made a second time\n"
                f"  found     {makes}: what was drawn seems to be kept, in {where}; in which epoch,\n"
                "            and for which example, a process draws it depends on the world size and on resumes;\n"
                "            what is drawn once for all belongs into __init__, as does what connects by random numbers"
            )
        return given

    def _is_the_same(self, given: Any, read: Callable[[], Any], before: list[_Attributes]) -> bool | None:
        """None: nobody can see it."""
        first, between = digest_of(given), [attributes.again() for attributes in before]
        if first is None:
            return None
        try:
            return digest_of(read()) == first
        except Exception:  # the script's own, which may raise anything: it was read, and that is enough
            return None
        finally:
            for then, now in zip(before, between, strict=True):
                if now.holder is self._roots[1] or hasattr(type(now.holder), "__getitem__"):
                    now.take_back(then)

    def _attributes(self) -> list[_Attributes]:
        """None where threads may be at work, for one of which a second read could wait."""
        every = list(holders(self._roots, beside=_BESIDE))
        if any(package_of(one) in _OF_THREADS for one in every):
            return []
        return [_Attributes(holder) for holder in every]


class _Attributes:
    """Of one object, and what containers among them hold, at one moment."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self._then = dict(vars(holder))
        self._inside = {key: held for key, value in self._then.items() if (held := _inside(value)) is not None}
        self._versions = {key: seen for key, value in self._then.items() if (seen := _versions(value))}

    def again(self) -> _Attributes:
        """Now."""
        return _Attributes(self.holder)

    def changed(self) -> list[str]:
        """Since that moment. An iterator is always, for nobody sees how far it is, and so is a large array."""
        now, kind = vars(self.holder), type(self.holder).__name__
        keys = sorted({**self._then, **now}, key=str)
        return [f"{kind}.{key}" for key in keys if self._has_changed(key, now)]

    def take_back(self, before: _Attributes) -> None:
        """What the second of two reads has counted or noted. This is between them, `before` ahead of them."""
        now = vars(self.holder)
        for key in [key for key in before._then if key in self._then and key in now]:
            first, second, value = before._then[key], self._then[key], now[key]
            if _counted(first, second) and _counted(second, value) and value - second == second - first:
                now[key] = second
            elif second is value and key in self._inside and key in before._inside:
                _take_back(value, before._inside[key], self._inside[key])

    def _has_changed(self, key: str, now: dict[str, Any]) -> bool:
        if key not in now or now[key] is not self._then.get(key, self):
            return True
        value = now[key]
        if hasattr(type(value), "__next__") or _may_be_written(value, held=key in self._inside):
            return True
        if self._versions.get(key, ()) != _versions(value):
            return True
        return key in self._inside and not _same_inside(self._inside[key], _inside(value))


def _inside(value: Any) -> Any:
    """A copy of what a container or a small array holds now, one level deep; None: it is neither, or large."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.nbytes <= _BYTES_MAX and value.dtype != object else None
    if isinstance(value, torch.Tensor):
        small = value.device.type == "cpu" and value.layout is torch.strided and value.nbytes <= _BYTES_MAX
        return value.detach().clone() if small else None
    if not isinstance(value, (list, dict, set, deque)) or len(value) > _ITEMS_MAX:
        return None
    return dict(value) if isinstance(value, dict) else list(value)


def _items(value: Any) -> list[Any]:
    """Of a container, or the value itself."""
    if not isinstance(value, (list, tuple, dict, deque)):
        return [value]
    if len(value) > _ITEMS_MAX:
        return []
    return list(value.values()) if isinstance(value, dict) else list(value)


def _versions(value: Any) -> tuple[int, ...]:
    """Of the tensor that it is, or of those that it holds: one that was written to has another."""
    return tuple(one._version for one in _items(value) if isinstance(one, torch.Tensor) and not one.is_inference())


def _may_be_written(value: Any, *, held: bool) -> bool:
    """Whether it is, or holds, an array of NumPy's of which nobody would see that a read has written to it.

    held  what it holds was copied, as that of a small array is
    """
    if isinstance(value, np.ndarray):
        return value.flags.writeable and not held
    return any(isinstance(one, np.ndarray) and one.flags.writeable for one in _items(value))


def _same_inside(then: Any, now: Any) -> bool:
    if isinstance(then, (np.ndarray, torch.Tensor)):
        return now is not None and digest_of(then) == digest_of(now)
    if now is None or len(then) != len(now):
        return False
    if isinstance(then, dict):
        return all(map(is_, then, now)) and all(map(is_, then.values(), now.values()))
    return all(map(is_, then, now))


def _take_back(value: Any, first: Any, second: Any) -> None:
    """Of a list, what was appended to it in both reads; of a dict, what was counted in both."""
    if isinstance(value, dict):
        for key in [key for key in second if key in value]:
            one, two, now = first.get(key, 0), second[key], value[key]
            if _counted(one, two) and _counted(two, now) and now - two == two - one:
                value[key] = two
    elif isinstance(value, (list, deque)):
        more = len(second) - len(first)
        if more > 0 and len(value) - len(second) == more and all(map(is_, second, value)):
            for _ in range(more):
                value.pop()


def _counted(one: Any, other: Any) -> bool:
    return type(one) is type(other) is int and one != other

"""What optimizers are set to (learning rates, betas, weight decay), compared between ranks at every step.

Equal gradients give equal weights where the settings are equal. One that a rank makes of what it alone knows, such as a
plateau of its own last share's loss, leaves each rank with weights of its own; so what such a schedule keeps is
compared, too, which shows that before a rate has changed.

Compared are numbers, also in tuples, as floats: a state that has travelled may hold 1.0 for 1 and a list for a tuple.
Of tensors only those of one number on the CPU: for another device a step would have to wait.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Protocol

import torch
import xxhash
from torch.optim.lr_scheduler import LRScheduler


class Grouped(Protocol):
    """Something with settings in groups: an optimizer."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


Optimizers = Mapping[str, Grouped]
Settings = dict[str, list[list[Any]]]
"""optimizer -> its groups, each a list of [key, numbers]; JSON leaves it as it is"""

_OF_EXTRA = "extra."
_NO_SETTINGS = frozenset({"params", "param_names"})
_PLAIN = frozenset({float, int, bool})


class OfSchedule:
    """The state of a schedule, such as a plateau's best loss, as if it were a group's settings."""

    def __init__(self, schedule: LRScheduler) -> None:
        self._schedule = schedule

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [self._schedule.state_dict()]


def settings_of(optimizers: Mapping[str, torch.optim.Optimizer], extra: Mapping[str, Any]) -> Optimizers:
    """Return the optimizers, and the schedules in `extra` that the script steps by itself."""
    own = {f"{_OF_EXTRA}{name}": OfSchedule(one) for name, one in extra.items() if isinstance(one, LRScheduler)}
    return {**optimizers, **own}


def digest(optimizers: Optimizers) -> int:
    """Return 63 bits that are equal where `settings` are. Costs some µs a group at every step."""
    found: list[float] = []
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            for value in _values(tuple(group))(group):
                if value is None:
                    continue
                if type(value) in _PLAIN:
                    found.append(value)
                else:
                    found += _numbers(value)
    return xxhash.xxh3_64_intdigest(array("d", found).tobytes()) >> 1


def settings(optimizers: Optimizers) -> Settings:
    """Return all options of the groups that are numbers, for `difference`."""
    return {
        name: [
            [[key, found] for key in _keys(tuple(group)) if (found := [*_numbers(group[key])])]
            for group in optimizer.param_groups
        ]
        for name, optimizer in optimizers.items()
    }


def difference(here: Settings, there: Settings) -> list[str]:
    """Say which settings differ, and what they are here and there."""
    said = []
    for name, groups in here.items():
        for number, (mine, other) in enumerate(zip(groups, there.get(name, ()), strict=False)):
            theirs = dict(other)
            said += [
                f"{key} of {_where(name, number)}: {_said(values)} here and {_said(theirs.get(key, ()))} there"
                for key, values in mine
                if repr(theirs.get(key)) != repr(values)  # no number is equal to none here
            ]
    return said


@lru_cache(maxsize=256)
def _keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return a group's keys, sorted: those of a group that was loaded come in another order."""
    return tuple(sorted(set(keys) - _NO_SETTINGS))


@lru_cache(maxsize=256)
def _values(keys: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function that gives the options of any group with these keys, as a tuple."""
    found = _keys(keys)
    return itemgetter(*found, *found[:1]) if found else lambda _: ()  # of two keys or more it is a tuple


def _numbers(value: Any) -> Iterator[float]:
    if type(value) in _PLAIN:
        yield float(value)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
        yield float(value)


def _where(name: str, group: int) -> str:
    return repr(name) if name.startswith(_OF_EXTRA) else f"{name!r}, group {group}"


def _said(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.17g}" for value in values) or "none"

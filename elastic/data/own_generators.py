"""Random generators that a dataset keeps to itself are pointed at each example's own stream, as the default ones are.

`self.rng = np.random.default_rng(0)` draws on from example to example: what an example gets would depend on what its
process has read before, and each process would draw the same numbers.

Promises  inside `dataset[i]` a generator that lies in attributes of the dataset, or of what these hold (transforms,
          lists of them, other datasets), is seeded from (seed, epoch, i) and its place among them; so is one of the
          collate function's. After a read it stands where it stood, for whoever shares it.
          Those of modules, of what they hold, and of optimizers are seeded with every stream of the loop's, likewise.
Leaves    one that a function keeps in its closure, or that is made only while examples are read.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from elastic.state.randomness import derive

_LOOKED_AT = 10_000  # objects
_ITEMS = 1_000  # of a list: a longer one holds data
_DEFAULT = frozenset(
    id(one)
    for one in (torch.default_generator, getattr(random, "_inst", None), getattr(np.random.mtrand, "_rand", None))
)
_NONE: Mapping[str, Any] = {}
_OF_MODULES = frozenset(vars(torch.nn.Module()))  # whatever its class
_CLOSED = (str, bytes, int, float, torch.Tensor, np.ndarray, type, ModuleType)


class OwnGenerators:
    """The generators that these objects keep, each once, in an order that all processes find.

    holders  what may hold some: they are told apart by their place
    named    generators that need not be the same ones in all processes: they are told apart by name
    """

    def __init__(self, *holders: Any, named: Mapping[str, Any] = _NONE) -> None:
        seen = set(_DEFAULT)
        self._found = [one for holder in holders for one in _generators(holder, seen)]
        self._keys: list[int | str] = [*range(len(self._found))]
        for name, one in named.items():
            if id(one) not in seen:
                seen.add(id(one))
                self._found.append(one)
                self._keys.append(name)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Put the generators back, after a read, to where they stood before it."""
        states = self.state()
        try:
            yield
        finally:
            self.set_state(states)

    def state(self) -> list[Any]:
        return [_state(one) for one in self._found]

    def set_state(self, states: Sequence[Any]) -> None:
        for one, state in zip(self._found, states, strict=True):
            _set_state(one, state)

    def seed(self, value: int) -> None:
        """Seed each generator from its place or name and from `value`, the example's `derive`d number."""
        for key, one in zip(self._keys, self._found, strict=True):
            own = derive("own generator", value, key)
            if isinstance(one, np.random.Generator):
                one.bit_generator.state = type(one.bit_generator)(own).state
            elif isinstance(one, np.random.RandomState):
                one.seed(own >> 32)
            elif isinstance(one, torch.Generator):
                one.manual_seed(own)
            else:
                one.seed(own)


def _generators(holder: Any, seen: set[int]) -> Iterator[Any]:
    """Yield each generator once, in an order that all processes find. seen: the ids of what was looked at."""
    waiting, at_most = deque([holder]), len(seen) + _LOOKED_AT
    while waiting and len(seen) < at_most:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _CLOSED):
            continue
        seen.add(id(one))
        if isinstance(one, (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)):
            yield one
        elif isinstance(one, dict):  # no other mapping, which may be an open file
            waiting.extend(one.values() if len(one) <= _ITEMS else ())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one if len(one) <= _ITEMS else ())
        elif isinstance(one, functools.partial):
            waiting.extend((one.func, one.args, one.keywords))
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        elif isinstance(one, torch.nn.Module):
            waiting.extend(value for key, value in vars(one).items() if key not in _OF_MODULES)
            waiting.extend(one.children())
        elif isinstance(one, torch.optim.Optimizer):
            waiting.extend(value for key, value in vars(one).items() if key not in ("state", "param_groups"))
        else:
            waiting.extend(getattr(one, "__dict__", {}).values())


def _state(one: Any) -> Any:
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    return one.getstate() if isinstance(one, random.Random) else one.get_state()


def _set_state(one: Any, state: Any) -> None:
    if isinstance(one, np.random.Generator):
        one.bit_generator.state = state
    elif isinstance(one, random.Random):
        one.setstate(state)
    else:
        one.set_state(state)

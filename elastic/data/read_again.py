"""Does an example depend on what was read before it? Asked of the first ones that a process reads, and of their batch.

How many examples a process has read, and in which order, depends on the world size, on recoveries and on what was read
ahead. What a data set or a collate function keeps of one read for the next (a count, the last image, a running mean, an
iterator that `dataset[i]` draws from) makes the result depend on that, too. Most of what is kept is harmless: an opened
file, a cache, a log. So where a read has changed an attribute it is made once more, with the same random numbers: what
is not the same is refused.

Promises  no second read where none of the attributes that are looked at has changed; after it, these are as the first
          has left them: who counts reads counts one.
Leaves    what is kept in closures, globals, files and large arrays, and what a later read than the next depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import is_
from types import FunctionType
from typing import Any

import numpy as np
import torch

from elastic.data.dataset_changes import holders
from elastic.data.example_digest import digest_of
from elastic.errors import ReadOrderError
from elastic.state.trained_set import listed

_EXAMPLES = 4  # that are asked, and a batch
_ITEMS_MAX = 10_000  # of a container
_BYTES_MAX = 1 << 20  # of an array


class ReadAgain:
    """
    dataset, collate_fn  as the script has made them
    """

    def __init__(self, dataset: Any, collate_fn: Any) -> None:
        self._roots = dataset, collate_fn
        self._asked = 0
        self.may_collate_again = not (collate_fn is None or isinstance(collate_fn, FunctionType))
        """Whether the collate function may keep something that is looked at."""

    @property
    def enough(self) -> bool:
        """A few were asked."""
        return self._asked >= _EXAMPLES

    def call(self, what: str, read: Callable[[], Any]) -> Any:
        """What `read` returns; it may be called twice.

        what  "dataset[7]", for the error

        Raises ReadOrderError, and what the first `read` raises.
        """
        self._asked += 1
        before = self._attributes()
        given = read()
        changed = [name for attributes in before for name in attributes.changed()]
        if changed and not self._is_the_same(given, read):
            raise ReadOrderError(
                f"{what} gave something else when it was read a second time\n"
                f"  found     it depends on what was read before; reading has changed {listed(changed)};\n"
                "            how many examples a process reads, and in which order, depends on the world size"
            )
        return given

    def _is_the_same(self, given: Any, read: Callable[[], Any]) -> bool:
        first, after = digest_of(given), self._attributes()
        try:
            return digest_of(read()) == first
        except Exception:  # the script's own, which may raise anything: it was read, and that is enough
            return True
        finally:
            for attributes in after:
                attributes.put_back()

    def _attributes(self) -> list[_Attributes]:
        return [_Attributes(holder) for holder in holders(self._roots)]


class _Attributes:
    """Of one object, and what containers among them hold."""

    def __init__(self, holder: Any) -> None:
        self._kind = type(holder).__name__
        self._now: dict[str, Any] = vars(holder)
        self._then = dict(self._now)
        self._inside = {key: held for key, value in self._now.items() if (held := _inside(value)) is not None}

    def changed(self) -> list[str]:
        """Names; an iterator is always one, for nobody sees how far it is."""
        keys = self._now.keys() | self._then.keys()
        return [f"{self._kind}.{key}" for key in sorted(keys, key=str) if self._has_changed(key)]

    def put_back(self) -> None:
        """What has changed, and nothing else: a thread of the data set's may read the rest."""
        for key in [key for key in {**self._now, **self._then} if self._has_changed(key)]:
            if key in self._then:
                self._now[key] = self._then[key]
                if key in self._inside:
                    _fill(self._then[key], self._inside[key])
            else:
                del self._now[key]

    def _has_changed(self, key: str) -> bool:
        if key not in self._now or self._now[key] is not self._then.get(key, self):
            return True
        value = self._now[key]
        if hasattr(type(value), "__next__"):
            return True
        return key in self._inside and not _same_inside(self._inside[key], _inside(value))


def _inside(value: Any) -> Any:
    """A copy of what a container or a small array holds now, one level deep; None: it is neither, or large."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.nbytes <= _BYTES_MAX and value.dtype != object else None
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.layout is torch.strided and value.nbytes <= _BYTES_MAX else None
    if not isinstance(value, (list, dict, set, deque)) or len(value) > _ITEMS_MAX:
        return None
    return list(value.items()) if isinstance(value, dict) else list(value)


def _fill(value: Any, held: Any) -> None:
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            np.copyto(value, held)
    elif isinstance(value, torch.Tensor):
        if not _same_inside(held, value):
            with torch.no_grad():
                value.copy_(held)
    else:
        value.clear()
        if isinstance(value, dict):
            dict.update(value, held)  # a Counter's own counts
        elif isinstance(value, set):
            value.update(held)
        else:
            value.extend(held)


def _same_inside(then: Any, now: Any) -> bool:
    if isinstance(then, (np.ndarray, torch.Tensor)):
        return now is not None and digest_of(then) == digest_of(now)
    if now is None or len(then) != len(now):
        return False
    if then and isinstance(then[0], tuple):
        return all(
            type(other) is tuple and len(one) == len(other) and all(map(is_, one, other))
            for one, other in zip(then, now, strict=True)
        )
    return all(map(is_, then, now))

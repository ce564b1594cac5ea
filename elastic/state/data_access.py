"""Tells those who ask for it when something is about to be done through `parameter.data`.

torch has no version that `.data` moves, and to look at all weights at every step would cost as much as to read them;
this costs nothing where nobody uses `.data`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from elastic.state.sharding import local

Accessed = Callable[[torch.nn.Parameter], None]

DATA: Any = torch.Tensor.data
"""The descriptor: also of parameters, unless `watch` stands before it."""
_watching: list[Accessed] = []


def watch(accessed: Accessed) -> Callable[[], None]:
    """Have `accessed(parameter)` called before each use of `parameter.data`, until what is returned is called."""
    _watching.append(accessed)
    if len(_watching) == 1:
        torch.nn.Parameter.data = property(_get, _set)  # type: ignore[assignment]

    def unwatch() -> None:
        with suppress(ValueError):
            _watching.remove(accessed)
            if not _watching:
                del torch.nn.Parameter.data  # Tensor's own is found again

    return unwatch


def same(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Return whether two tensors are of a kind and have equal values, where NaN equals NaN; of DTensors, own parts."""
    before, now = local(before), local(now)
    if (before.shape, before.dtype, before.device) != (now.shape, now.dtype, now.device):
        return False
    return torch.equal(before, now) or torch.allclose(before, now, rtol=0, atol=0, equal_nan=True)


def _get(parameter: torch.nn.Parameter) -> torch.Tensor:
    for accessed in _watching:
        accessed(parameter)
    data: torch.Tensor = DATA.__get__(parameter)
    return data


def _set(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    for accessed in _watching:
        accessed(parameter)
    DATA.__set__(parameter, value)

"""Bytes that come back damaged are read once more: what a network cut short, or a memory flipped, is whole then, and
nobody falls back to an older checkpoint for it. Needs no torch."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from elastic_checkpoint.errors import CorruptCheckpoint

P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_S = 0.1


def read_again(read: Callable[P, T]) -> Callable[P, T]:
    """A function that reads and verifies, called a second time where it raises `CorruptCheckpoint`."""

    @functools.wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except CorruptCheckpoint:
            time.sleep(_PAUSE_S)
        return read(*args, **kwargs)

    return reading

"""Reads that are careful: bounded in size, once more where bytes came back damaged, or with an answer within a time.

A folder that others write to may hold anything, such as a sparse file of 200 GB where a manifest belongs. What is that
large is none of ours, and must not end the reader, nor the process.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import ParamSpec, TypeVar

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.storage.base import Storage

_FIRST_BYTES = 2**20


class TooLarge(Exception):
    """The object is larger than it can be. Fields: size, most; in bytes."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"it has {size:,} bytes, and no object of this kind has more than {most:,}")
        self.size, self.most = size, most


def get_bounded(storage: Storage, key: str, most: int) -> bytes:
    """Return the object's bytes. Raises `Missing`, and `TooLarge` above `most` bytes, of which few are read then."""
    first_bytes = min(_FIRST_BYTES, most + 1)
    first = storage.get(key, 0, first_bytes)
    if len(first) < first_bytes:
        return first
    size = storage.size(key)
    if size > most:
        raise TooLarge(size, most)
    return first + storage.get(key, len(first), size - len(first))


P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_S = 0.1


def read_again(read: Callable[P, T]) -> Callable[P, T]:
    """Return a function that reads and verifies, called a second time where it raises `CorruptCheckpoint`."""

    @functools.wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except CorruptCheckpoint:
            time.sleep(_PAUSE_S)
        return read(*args, **kwargs)

    return reading


def answer_within(seconds: float, ask: Callable[[], T]) -> T:
    """Call `ask` in a thread, and return or raise what it does. Raises TimeoutError where it does neither in time.

    It is left to itself then, in a thread that ends with the process at the latest, and so are those in which its
    client looks names up.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def asks() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=asks, name="checkpoint-answer", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if errors:
        raise errors.pop()
    if not answers:
        _let_end()
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answers.pop()


def _let_end() -> None:
    """Let the interpreter end, which joins every pool's threads, daemons too (CPython 3.10 to 3.14)."""
    # Of asyncio's pool that is here whoever waits for a resolver that does not answer, as long as that may take.
    for one in list(pools._threads_queues):
        if one.daemon and one.name.startswith("asyncio"):
            pools._threads_queues.pop(one, None)  # type: ignore[attr-defined]

"""Items that come slowly, or never, taken one by one until time is up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    error: BaseException | None


def arriving(items: Callable[[], Generator[T, None, None]], within_s: float) -> Iterator[T]:
    """Yield the items as they come, which a thread of their own makes.

    Raises what they raise, and TimeoutError after `within_s`: the thread ends with the next item then, or with the
    process.
    """
    came: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    over = threading.Event()
    deadline_s = time.monotonic() + within_s

    def make() -> None:
        error = None
        try:
            with closing(items()) as made:
                for item in made:
                    came.put(item)
                    if over.is_set():
                        break
        except BaseException as raised:
            error = raised
        came.put(_End(error))

    threading.Thread(target=make, name="elastic-arriving", daemon=True).start()
    try:
        while True:
            try:
                item = came.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"not all of it came within {within_s:g} s") from None
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return
    finally:
        over.set()

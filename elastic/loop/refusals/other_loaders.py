"""A DataLoader of the script's own, read on from one body of the loop to the next: a second data set, as for unlabelled
examples.

How many bodies a worker has depends on the world size, and so would what each body gets; a worker that joins would
begin it anew. That is refused. One whose iterator is made and read in one body is let pass, and one that is read
between steps, or behind the update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

from elastic.errors import UNTOUCHED, StepError

Body = tuple[int, int, int | None, int]
_NEXT: Any = dataloader._BaseDataLoaderIter.__next__
_watching: list[Callable[[Any], None]] = []


class OtherLoaders:
    """body  says which body of the loop runs: its step, attempt, share and piece; None: none, or its update is due"""

    def __init__(self, body: Callable[[], Body | None]) -> None:
        self._body = body
        self._read_in: WeakKeyDictionary[Any, Body] = WeakKeyDictionary()
        _watching.append(self._look)
        dataloader._BaseDataLoaderIter.__next__ = _next  # type: ignore[method-assign, assignment]

    def close(self) -> None:
        _watching.remove(self._look)
        if not _watching:
            dataloader._BaseDataLoaderIter.__next__ = _NEXT  # type: ignore[method-assign]

    def _look(self, iterator: Any) -> None:
        body = self._body()
        if body is not None and self._read_in.setdefault(iterator, body) != body:
            raise StepError(
                "a DataLoader of the script's own is read on from one body of the loop to the next, "
                f"in step {body[0]}\n"
                "  found  how many bodies a worker has depends on the world size, and so would what it reads; "
                "a worker that joins,\n         or a resume, would begin it anew\n"
                f"{UNTOUCHED}"
                "  next   have the run's dataset give both, as in dataset[i] = labelled[i], other[i % len(other)]"
            )


def _next(iterator: Any) -> Any:
    for look in _watching:
        look(iterator)
    return _NEXT(iterator)

"""Which ranks of a group have come to save or load together? Counted in the group's own store, where it has one.

Each rank counts itself before it waits for the others. So one that waited in vain can name those whose count is lower
than its own: they never called the first save or load, or ended before. Where the store cannot tell, nobody is named.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from elastic_checkpoint.storage.reads import answer_within

_ANSWER_S = 10.0  # the store may have gone with the rank that is missing


class RollCall:
    """Which ranks of `group`, None: of all, have come; made by each of them as it comes."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int, size: int) -> None:
        self._size = size
        self._store: Any = None
        try:
            store = (group or dist.group.WORLD).get_group_store()  # type: ignore[union-attr]
            self._mine = store.add(_key(rank), 1)
            self._store = store
        except (AttributeError, RuntimeError):  # a backend without one, or without counting
            pass

    def missing(self) -> list[int]:
        """Return the ranks that have not come as often as this one; none, where that cannot be found out."""
        try:
            return answer_within(_ANSWER_S, self._look)
        except (RuntimeError, OSError):
            return []

    def _look(self) -> list[int]:
        if self._store is None:
            return []
        return [rank for rank in range(self._size) if self._store.add(_key(rank), 0) < self._mine]


def _key(rank: int) -> str:
    return f"checkpoint/came/{rank}"

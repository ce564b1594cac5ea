"""A storage that loses power: real until the cut, dead from then on. The testing room's, at the seam above fsspec."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elastic_checkpoint.storage import Buffer, Storage
from elastic_checkpoint.testing import Cut, Faults, Plan
from elastic_checkpoint.testing import PowerCut as PowerCut

T = TypeVar("T")


class CutAfter:
    """`Storage` around a real one that does `operations` more operations and then raises PowerCut at each.

    late  the operation that is cut is carried out, but its answer is lost
    """

    def __init__(self, inner: Storage, operations: int, *, late: bool = False) -> None:
        self.inner = inner
        self.faults = Faults(Plan(Cut(after=operations, late=late)))
        self._operations = operations

    @property
    def left(self) -> int:
        return self._operations - self.faults.operations.total()

    @property
    def url(self) -> str:
        return self.inner.url

    def put_new(self, key: str, data: Buffer) -> None:
        self._spend("write", key, lambda: self.inner.put_new(key, data))

    def put(self, key: str, data: Buffer) -> None:
        self._spend("write", key, lambda: self.inner.put(key, data))

    def delete(self, key: str) -> None:
        self._spend("delete", key, lambda: self.inner.delete(key))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._spend("read", key, lambda: self.inner.get(key, start, length))

    def list(self, prefix: str) -> dict[str, int]:
        return self._spend("list", prefix, lambda: self.inner.list(prefix))

    def size(self, key: str) -> int:
        return self._spend("look", key, lambda: self.inner.size(key))

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        return self._spend("delete", "", lambda: self.inner.tidy(older_than_s))

    def exclusive(self) -> bool:
        return self.inner.exclusive()

    def close(self) -> None:
        self.inner.close()

    def _spend(self, operation: str, key: str, act: Callable[[], T]) -> T:
        with self.faults.during(operation, key):
            return act()

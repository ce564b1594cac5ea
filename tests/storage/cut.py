"""A storage that loses power: real until the cut, dead from then on."""

from __future__ import annotations

from checkpoint.storage import Buffer, Storage


class PowerCut(BaseException):
    """Not an Exception: like a SIGKILL, nothing may handle it."""


class CutAfter:
    """`Storage` around a real one that does `operations` more operations and then raises PowerCut at each.

    late  the operation that is cut is carried out, but its answer is lost
    """

    def __init__(self, inner: Storage, operations: int, *, late: bool = False) -> None:
        self.inner = inner
        self.left = operations
        self.late = late

    @property
    def url(self) -> str:
        return self.inner.url

    def put_new(self, key: str, data: Buffer) -> None:
        self._spend(lambda: self.inner.put_new(key, data))

    def put(self, key: str, data: Buffer) -> None:
        self._spend(lambda: self.inner.put(key, data))

    def delete(self, key: str) -> None:
        self._spend(lambda: self.inner.delete(key))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._spend()
        return self.inner.get(key, start, length)

    def list(self, prefix: str) -> dict[str, int]:
        self._spend()
        return self.inner.list(prefix)

    def size(self, key: str) -> int:
        self._spend()
        return self.inner.size(key)

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        self._spend()
        return self.inner.tidy(older_than_s)

    def exclusive(self) -> bool:
        return self.inner.exclusive()

    def close(self) -> None:
        self.inner.close()

    def _spend(self, act: object = None) -> None:
        if self.left <= 0:
            if self.late and self.left == 0 and callable(act):
                act()
            self.left -= 1
            raise PowerCut
        self.left -= 1
        if callable(act):
            act()

"""What this package asks of a storage. tests/storage/test_contract.py holds every backend to these lines."""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class AlreadyThere(Exception):
    """`put_new` found other bytes under the key; nothing was changed."""


class Missing(Exception):
    """There is no object under the key."""


class Storage(Protocol):
    """Named blobs below one URL. Keys are relative, separated by "/", and never begin with one.

    Reads see what was written last, at once, from every process (S3, GCS, Azure and local folders do).
    Backends raise `AlreadyThere` and `Missing`, and let every other failure through as the OSError that it was:
    retry.py, which `open_storage` puts around each of them, decides what is tried again and turns the rest into
    `StorageError`.
    """

    @property
    def url(self) -> str:
        """The run's URL as people may see it: without credentials."""
        ...

    def put_new(self, key: str, data: Buffer) -> None:
        """Creates the object, all or nothing: readers see no object or all of it, and never a mix of two.

        Raises `AlreadyThere` if the key exists. Of any number of callers exactly one succeeds, where `exclusive()`
        is true. On return the bytes survive a power cut. Always one request, never a multipart upload.
        Through `open_storage`, bytes that are already there and equal to `data` are success: an earlier attempt
        of this very call may have put them there. Callers whose bytes could coincide put a nonce into them.
        """
        ...

    def put(self, key: str, data: Buffer) -> None:
        """Writes the object, all or nothing, over what was there. For keys that only this writer can know."""
        ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The object's bytes, or `length` of them from `start` on (fewer at its end). Raises `Missing`.

        Checks no hash, which is the reader's work.
        """
        ...

    def list(self, prefix: str) -> dict[str, int]:
        """Key -> size in bytes of all objects below the folder `prefix` ("" for all), in order of the keys.

        An absent folder is an empty one.
        """
        ...

    def size(self, key: str) -> int:
        """The object's size in bytes. Raises `Missing`."""
        ...

    def delete(self, key: str) -> None:
        """Removes the object; an absent one is fine."""
        ...

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        """Removes what puts that were cut short left behind and no `list` shows; returns their names."""
        ...

    def exclusive(self) -> bool:
        """Whether `put_new` is decided by the storage itself. Where that is not known, it is tried once.

        If not, `put_new` looks, writes and reads back, so that two callers at the same instant may both succeed; the
        bytes of one remain.
        """
        ...

    def close(self) -> None:
        """Lets go of connections. Idempotent; the storage must not be used afterwards."""
        ...


def get_into(storage: Storage, key: str, target: memoryview) -> int:
    """Reads the object into `target` and returns the object's size. If that differs, what `target` holds is undefined.

    Without a copy in between where the storage has a `get_into(key, target)` of its own. Raises `Missing`.
    """
    direct = getattr(storage, "get_into", None)
    if direct is not None:
        size: int = direct(key, target)
        return size
    data = storage.get(key)
    if len(data) == len(target):
        target[:] = data
    return len(data)


def map_object(storage: Storage, key: str) -> memoryview | None:
    """All of the object's bytes, in memory that costs next to nothing, where the storage has a `map(key)` of its own.

    Else None. What is written to this memory is seen by nobody else. Raises `Missing`.

    All of it was there when this returned, and it stays as the kernel's copy of the file. Should the kernel let go of a
    page meanwhile, that page is read once more: a disk that breaks just then is a SIGBUS, and what others changed in
    the file is seen. So this is for files of this machine that fit into its memory.
    """
    mapping = getattr(storage, "map", None)
    found: memoryview | None = mapping(key) if mapping is not None else None
    return found

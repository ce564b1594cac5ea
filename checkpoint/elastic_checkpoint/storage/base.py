"""What this package asks of a storage. tests/storage/test_contract.py holds every backend to these lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview


class AlreadyThere(Exception):
    """`Storage.put_new` found other bytes under the key; nothing was changed."""


class Missing(Exception):
    """There is no object under the key.

    what  lies there instead, where something does: "is a FIFO, not a plain file"
    """

    def __init__(self, key: str, what: str = "is absent") -> None:
        super().__init__(key, what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.args[0]} {self.what}"


class NotDeleted(OSError):
    """Some of many objects could not be removed. It has, as a server's own error does, the code for the first of them.

    failed    each one's key, and what the server said of it: {"Code": ..., "Message": ...}
    response  what a client library would have made of the first
    """

    def __init__(self, failed: Sequence[tuple[str, dict[str, Any]]]) -> None:
        some = ", ".join(f"{key} ({error.get('Code')}: {error.get('Message')})" for key, error in failed[:3])
        more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
        super().__init__(f"{len(failed)} objects could not be removed: {some}{more}")
        self.failed = tuple(failed)
        self.response = {"Error": failed[0][1]}


class Storage(Protocol):
    """Named blobs below one URL: what `Checkpointer` may be given instead of one. A class of your own needs no base.

    Keys are relative, separated by "/", and never begin with one. Reads see what was written last, at once, from every
    process (S3, GCS, Azure and local folders do). Methods raise `AlreadyThere` and `Missing` (of
    `elastic_checkpoint.storage`), and let every other failure through as the OSError that it was: around those that
    `open_storage` makes of a URL, retry.py decides what is tried again and turns the rest into `StorageError`.
    """

    @property
    def url(self) -> str:
        """Return the run's URL as people may see it: without credentials."""
        ...

    def put_new(self, key: str, data: Buffer) -> None:
        """Create the object, all or nothing: readers see no object or all of it, and never a mix of two.

        Of any number of callers exactly one succeeds, where `exclusive()` is true. On return the bytes survive a power
        cut. Always one request, never a multipart upload.
        Through `open_storage`, bytes that are already there and equal to `data` are success: an earlier attempt
        of this very call may have put them there. Callers whose bytes could coincide put a nonce into them.

        Raises:
            AlreadyThere: The key exists.
        """
        ...

    def put(self, key: str, data: Buffer) -> None:
        """Write the object, all or nothing, over what was there. For keys that only this writer can know."""
        ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or some of them. Checks no hash, which is the reader's work.

        Args:
            key: The object's.
            start: The first byte that is wanted, from 0.
            length: How many; fewer at the object's end. None: all from `start` on.

        Raises:
            Missing: There is no such object.
        """
        ...

    def list(self, prefix: str) -> dict[str, int]:
        """List what there is.

        Args:
            prefix: A folder, such as "data"; "" for all. An absent one is an empty one.

        Returns:
            Key -> size in bytes of all objects below it, in order of the keys.
        """
        ...

    def size(self, key: str) -> int:
        """Return the object's size in bytes.

        Raises:
            Missing: There is no such object.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is fine."""
        ...

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        """Remove what puts that were cut short left behind and no `list` shows.

        Args:
            older_than_s: What is younger, in seconds, may be under way, and stays.

        Returns:
            Their names.
        """
        ...

    def exclusive(self) -> bool:
        """Return whether `put_new` is decided by the storage itself. Where that is not known, it is tried once.

        If not, `put_new` looks, writes and reads back, so that two callers at the same instant may both succeed; the
        bytes of one remain.
        """
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent; the storage must not be used afterwards."""
        ...


def make_durable(storage: Storage, key: str) -> None:
    """Make what was created by an attempt that failed afterwards survive a power cut.

    Where the storage has a `make_durable(key)` of its own; others answer only for what is durable.
    """
    direct = getattr(storage, "make_durable", None)
    if direct is not None:
        direct(key)


def put_lightly(storage: Storage, key: str, data: Buffer) -> None:
    """Write the object, maybe torn or not durable, if the storage has a cheaper `put_lightly`; else put it."""
    direct = getattr(storage, "put_lightly", None)
    if direct is None:
        storage.put(key, data)
    else:
        direct(key, data)


def get_into(storage: Storage, key: str, target: memoryview) -> int:
    """Read the object into `target` and return the object's size. If that differs, what `target` holds is undefined.

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
    """Return all of the object's bytes, in memory that costs next to nothing; None: the storage has no `map(key)`.

    What is written to this memory is seen by nobody else. Raises `Missing`.

    All of it was there when this returned, and it stays as the kernel's copy of the file. Should the kernel let go of a
    page meanwhile, that page is read once more: a disk that breaks just then is a SIGBUS, and what others changed in
    the file is seen. So this is for files of this machine that fit into its memory.
    """
    mapping = getattr(storage, "map", None)
    found: memoryview | None = mapping(key) if mapping is not None else None
    return found


def version(storage: Storage, key: str) -> str:
    """Return what differs once the object is written anew, as far as the storage tells. Raises `Missing`.

    Its entity tag, or when it was written; where the storage has no `version(key)` of its own, its size.
    """
    own = getattr(storage, "version", None)
    return f"{storage.size(key)} bytes" if own is None else str(own(key))


def written_at(storage: Storage, key: str) -> float | None:
    """Return when the object was written, in unix seconds by the storage's clock. Raises `Missing`.

    None where it has no clock, and no `written_at(key)` of its own.
    """
    own = getattr(storage, "written_at", None)
    return None if own is None else own(key)


def delete_many(storage: Storage, keys: Sequence[str]) -> None:
    """Remove these objects, in no particular order; absent ones are fine. An error leaves some of them, or all.

    In few requests where the storage has a `delete_many(keys)` of its own, and says how many it takes in one.
    """
    if deletes_at_once(storage) > 1:
        if keys:
            storage.delete_many(keys)  # type: ignore[attr-defined]
        return
    for key in keys:
        storage.delete(key)


def deletes_at_once(storage: Storage) -> int:
    """Return how many objects one request removes: what the storage's own `deletes_at_once` says, else 1."""
    return int(getattr(storage, "deletes_at_once", 1))


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in their order, `size` at a time. Pure."""
    for first in range(0, len(items), size):
        yield items[first : first + size]

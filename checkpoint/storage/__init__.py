"""Where checkpoints lie: named blobs in a folder or behind any fsspec URL, with retries and one contract (base.py)."""

from __future__ import annotations

import os
from typing import Any

from checkpoint.storage.base import AlreadyThere, Buffer, Missing, Storage, get_into, map_object
from checkpoint.storage.fsspec import FsspecStorage
from checkpoint.storage.local import LocalStorage
from checkpoint.storage.redact import Scrubber, redact
from checkpoint.storage.retry import RetryingStorage

__all__ = ["AlreadyThere", "Buffer", "Missing", "Storage", "get_into", "map_object", "open_storage", "redact"]


def open_storage(
    url: str | os.PathLike[str], storage_options: dict[str, Any] | None = None, *, retry_s: float = 120.0
) -> Storage:
    """The storage at `url`, a folder or any fsspec URL. Nothing is contacted yet.

    storage_options  handed to fsspec's filesystem, such as {"endpoint_url": ..., "key": ..., "secret": ...}
    retry_s          how long one operation is tried again while its error looks transient
    """
    text, options = os.fspath(url), storage_options or {}
    protocol, separator, path = text.partition("://")
    inner: Storage
    if not separator:
        inner = LocalStorage(text)
    elif protocol in ("file", "local"):
        inner = LocalStorage(path)
    else:
        inner = FsspecStorage(text, options)
    return RetryingStorage(inner, retry_s=retry_s, scrub=Scrubber(text, options))

"""Where checkpoints lie: named blobs in a folder or behind any fsspec URL, with retries and one contract.

base       the contract
local      a folder; direct_io: around the page cache
fsspec     any URL of fsspec's; s3: what is particular to S3; obstore: S3 through that package; ranges: parts of an
           object, several at once
retry      tries again what may heal; failures: what an error says
reads      reads that are careful
urls       can one be opened at this URL?
redact     URLs, errors and records without secrets
"""

from __future__ import annotations

import os
from typing import Any

from elastic_checkpoint.storage.base import (
    AlreadyThere,
    Buffer,
    Missing,
    Storage,
    batches,
    delete_many,
    deletes_at_once,
    get_into,
    map_object,
    put_lightly,
    version,
    written_at,
)
from elastic_checkpoint.storage.local import LocalStorage
from elastic_checkpoint.storage.reads import TooLarge, get_bounded
from elastic_checkpoint.storage.redact import Scrubber, redact
from elastic_checkpoint.storage.retry import RetryingStorage
from elastic_checkpoint.storage.urls import refusal

__all__ = [
    "AlreadyThere",
    "Buffer",
    "Missing",
    "Scrubber",
    "Storage",
    "TooLarge",
    "batches",
    "delete_many",
    "deletes_at_once",
    "get_bounded",
    "get_into",
    "map_object",
    "open_storage",
    "put_lightly",
    "redact",
    "version",
    "written_at",
]


def open_storage(
    url: str | os.PathLike[str],
    storage_options: dict[str, Any] | None = None,
    *,
    retry_s: float = 120.0,
    answer_s: float | None = None,
) -> Storage:
    """Return the storage at `url`, a folder or any fsspec URL. Nothing is contacted yet.

    storage_options  handed to fsspec's filesystem, such as {"endpoint_url": ..., "key": ..., "secret": ...}. With
                     "client": "obstore" among them S3 is reached through that package instead of s3fs (obstore.py)
    retry_s          how long one operation is tried again while its error looks transient
    answer_s         how long listing or looking up may take, with all attempts; None: as long as the client library
                     lets an attempt take

    Raises CheckpointError where the URL says that none can be opened there.
    """
    if (wrong := refusal(url, storage_options)) is not None:
        raise wrong.error()
    text, options = os.fspath(url), storage_options or {}
    protocol, separator, path = text.partition("://")
    inner: Storage
    if not separator:
        inner = LocalStorage(text)
    elif protocol in ("file", "local"):
        inner = LocalStorage(path)
    elif options.get("client", "s3fs") == "obstore":
        from elastic_checkpoint.storage.obstore import ObstoreStorage

        inner = ObstoreStorage(text, {name: value for name, value in options.items() if name != "client"})
    else:
        from elastic_checkpoint.storage.fsspec import FsspecStorage

        inner = FsspecStorage(text, options)
    return RetryingStorage(inner, retry_s=retry_s, scrub=Scrubber(text, options), answer_s=answer_s)

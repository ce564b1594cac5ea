"""Where checkpoints lie: named blobs in a folder or behind any fsspec URL, with retries and one contract.

base       the contract
local      a folder
fsspec     any URL of fsspec's; obstore: S3 through that package; ranges: parts of an object, several at once
retry      tries again what may heal; again: reads once more what came back damaged
answering  an answer within a time, or none, for whoever waits at a terminal
bounded    small objects, whatever lies under their key
redact     URLs and errors without secrets
"""

from __future__ import annotations

import os
import re
from typing import Any

from checkpoint.errors import CheckpointError
from checkpoint.storage.base import (
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
)
from checkpoint.storage.bounded import TooLarge, get_bounded
from checkpoint.storage.local import LocalStorage
from checkpoint.storage.redact import Scrubber, redact
from checkpoint.storage.retry import RetryingStorage

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
]


def open_storage(
    url: str | os.PathLike[str],
    storage_options: dict[str, Any] | None = None,
    *,
    retry_s: float = 120.0,
    answer_s: float | None = None,
) -> Storage:
    """The storage at `url`, a folder or any fsspec URL. Nothing is contacted yet.

    storage_options  handed to fsspec's filesystem, such as {"endpoint_url": ..., "key": ..., "secret": ...}. With
                     "client": "obstore" among them S3 is reached through that package instead of s3fs (obstore.py)
    retry_s          how long one operation is tried again while its error looks transient
    answer_s         how long listing or looking up may take, with all attempts; None: as long as the client library
                     lets an attempt take
    """
    text, options = os.fspath(url), storage_options or {}
    protocol, separator, path = text.partition("://")
    inner: Storage
    typo = re.match(r"([A-Za-z][\w+.-]+)(:/?)(?!//)", text)
    if typo and not separator and _is_protocol(typo[1]):
        meant = redact(text.replace(typo[2], "://", 1))  # which knows secrets in URLs
        raise CheckpointError(
            f"{typo[1]}{typo[2]} begins a path here, and would be a folder of that name\n"
            f"  found     {meant.replace('://', typo[2], 1)}\n"
            f"  expected  {meant}\n"
            "  state     nothing was read or written\n"
            f"  next      for a URL, write {typo[1]}:// with two slashes; for a folder, write ./{typo[1]}:"
        )
    if not separator:
        inner = LocalStorage(text)
    elif protocol in ("file", "local"):
        inner = LocalStorage(path)
    elif options.get("client", "s3fs") == "obstore":
        from checkpoint.storage.obstore import ObstoreStorage

        inner = ObstoreStorage(text, {name: value for name, value in options.items() if name != "client"})
    else:
        from checkpoint.storage.fsspec import (
            FsspecStorage,  # only here: a folder does without fsspec
        )

        inner = FsspecStorage(text, options)
    return RetryingStorage(inner, retry_s=retry_s, scrub=Scrubber(text, options), answer_s=answer_s)


def _is_protocol(name: str) -> bool:
    from fsspec import available_protocols

    return name in available_protocols()

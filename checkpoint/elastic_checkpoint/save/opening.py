"""What a writer process opens, so that it writes where this process would."""

from __future__ import annotations

import os
from typing import Any

from elastic_checkpoint.net.framing import Message
from elastic_checkpoint.storage import Storage


def opening_of(
    url: str | os.PathLike[str] | Storage, storage: Storage, options: dict[str, Any], retry_s: float
) -> Message | str:
    """What a writer process opens, or why it cannot."""
    if not isinstance(url, str | os.PathLike):
        return "the storage is an object of this process"
    text = os.fspath(url)
    protocol, separator, _ = text.partition("://")
    if protocol == "memory":
        return "memory:// is for a single process"
    local = not separator or protocol in ("file", "local")
    return {"url": storage.url if local else text, "options": options, "retry_s": retry_s}

"""An error of one process as a message, and in another one as the error that it was, with all of its fields.

Of errors that are not of this package the text may hold what nobody scrubbed: it is passed on where the storage's
secrets are known, and so taken out of it; else only its kind is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import elastic_checkpoint.errors as errors
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.codec import made
from elastic_checkpoint.net.framing import Message, NotAMessage

Scrub = Callable[[str], str]

_TEXT_MAX = 20_000
_REASON_MAX = 4000


def error_document(error: BaseException, scrub: Scrub | None = None) -> Message:
    """An error as JSON. scrub  takes secrets out of a text; None where they are not known."""
    if isinstance(error, CheckpointError):
        text = str(error) if scrub is None else scrub(str(error))
        return {"type": type(error).__name__, "text": text[:_TEXT_MAX], "fields": vars(error)}
    return {"type": "CheckpointError", "text": reason(error, scrub), "fields": {}, "foreign": True}


@dataclass(frozen=True, kw_only=True)
class _Document:
    """foreign  of an error that is not of this package"""

    type: str
    text: str
    fields: dict[str, Any]
    foreign: bool = False


def check_error(document: Message) -> None:
    """Raises NotAMessage for what is no error's document."""
    try:
        made(_Document, document)
    except NotAMessage as wrong:
        raise NotAMessage(f"no error: {wrong}") from None


def reason(error: BaseException, scrub: Scrub | None) -> str:
    """In one line."""
    text = " ".join(scrub(str(error)).split())[:_REASON_MAX] if scrub is not None else "its own output says more"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_from(document: Message) -> CheckpointError:
    """The inverse of `error_document`; what is no error of ours comes back as a plain CheckpointError."""
    kind = getattr(errors, str(document.get("type")), None)
    fields = document.get("fields")
    text = str(document.get("text"))
    if isinstance(kind, type) and issubclass(kind, CheckpointError) and isinstance(fields, dict):
        with contextlib.suppress(TypeError):  # other fields than this kind has
            return kind(text, **{name: tuple(one) if name == "tensors" else one for name, one in fields.items()})
    return CheckpointError(text)

"""An error of one process as a message, and in another one as the error that it was, with all of its fields.

Of errors that are not of this package the text may hold what nobody scrubbed: it is passed on where the storage's
secrets are known, and so taken out of it; else only its kind is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import msgspec

import elastic_checkpoint.errors as errors
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.codec import Facts

Scrub = Callable[[str], str]

UNTOUCHED = "nothing was committed and nothing was loaded; the previous checkpoint stays the newest"

_TEXT_MAX = 20_000
_REASON_MAX = 4000


class ErrorDocument(Facts):
    """An error as it travels; foreign: it is not of this package."""

    type: str
    text: str
    fields: dict[str, Any]
    foreign: bool = False


def error_document(error: BaseException, scrub: Scrub | None = None) -> ErrorDocument:
    """Return an error as it travels; scrub: takes secrets out of a text, None where they are not known."""
    if isinstance(error, CheckpointError):
        text = str(error) if scrub is None else scrub(str(error))
        return ErrorDocument(type=type(error).__name__, text=text[:_TEXT_MAX], fields=vars(error))
    return ErrorDocument(type="CheckpointError", text=reason(error, scrub), fields={}, foreign=True)


def error_from(document: ErrorDocument) -> CheckpointError:
    """Return the error of a document; what is no error of ours comes back as a plain CheckpointError."""
    kind = getattr(errors, document.type, None)
    if isinstance(kind, type) and issubclass(kind, CheckpointError):
        fields = {name: tuple(one) if name == "tensors" else one for name, one in document.fields.items()}
        with contextlib.suppress(TypeError):  # other fields than this kind has
            return kind(document.text, **fields)
    return CheckpointError(document.text)


def reason(error: BaseException, scrub: Scrub | None) -> str:
    """Return in one line why this process failed."""
    text = " ".join(scrub(str(error)).split())[:_REASON_MAX] if scrub is not None else "its own output says more"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def of_rank(document: ErrorDocument, rank: int, size: int, what: str, state: str) -> ErrorDocument:
    """Return what the other ranks hear of an error of this rank's, met in `what`."""
    if document.foreign:
        text = f"rank {rank} of {size} failed: {what}: {document.text}{next_lines(state)}"
    else:
        text = f"{document.text}\n  rank   {rank} of {size}: {what}"
    return msgspec.structs.replace(document, text=text)


def missing_ranks(
    what: str, ranks: list[int] | dict[int, str], size: int, wait_s: float, state: str
) -> CheckpointError:
    """Return the error that names the ranks that were lost, with how; or, where none was, those that were silent."""
    how = f"gave no sign within {wait_s:g} s"
    if isinstance(ranks, dict):
        how = f"{'is' if len(ranks) == 1 else 'are'} gone ({next(iter(ranks.values()))})"
    return CheckpointError(f"{_names(ranks)} of {size} {how}: {what}{next_lines(state)}")


def never_came(ranks: list[int], to: int, size: int, waited_s: float) -> CheckpointError:
    """Return the error of rank `to`, which has waited for these for the first time in this group."""
    return CheckpointError(
        f"{_names(ranks)} of {size} did not come to save or load with the others; rank {to} waited {waited_s:.0f} s\n"
        f"  state  {UNTOUCHED}\n"
        "  next   call save, load and warm on all ranks, in the same order; look for a rank that ended, too"
    )


def next_lines(state: str) -> str:
    return (
        f"\n  state  {state}\n  next   look at that rank's output; start the job again, on as many ranks as there are"
    )


def _names(ranks: Collection[int]) -> str:
    """Return "rank 1", or "ranks 1, 2"."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, sorted(ranks)))}"

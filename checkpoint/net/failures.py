"""How what failed on one rank becomes an error on all others: one that names the rank and its reason.

Errors of this package keep their kind and their fields. Of others the text may hold what nobody scrubbed: it is told
where the storage's secrets are known, and so taken out of it; else only its kind is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import checkpoint.errors as errors
from checkpoint.errors import CheckpointError
from checkpoint.net.star import Message

UNTOUCHED = "nothing was committed and nothing was loaded; the previous checkpoint stays the newest"

Scrub = Callable[[str], str]

_TEXT_MAX = 4000


def error_document(error: BaseException, scrub: Scrub | None = None) -> Message:
    """An error as JSON. scrub  takes secrets out of a text; None where they are not known."""
    if isinstance(error, CheckpointError):
        return {"type": type(error).__name__, "text": str(error), "fields": vars(error)}
    return {"type": "CheckpointError", "text": reason(error, scrub), "foreign": True}


def reason(error: BaseException, scrub: Scrub | None) -> str:
    """In one line, for the other ranks."""
    text = " ".join(scrub(str(error)).split())[:_TEXT_MAX] if scrub is not None else "that rank's own output says more"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def of_rank(document: Message, rank: int, size: int, what: str, state: str) -> Message:
    """What the other ranks hear of an error of this rank's, met in `what`."""
    if document.get("foreign"):
        return {**document, "text": f"rank {rank} of {size} failed: {what}: {document['text']}{next_lines(state)}"}
    return {**document, "text": f"{document['text']}\n  rank   {rank} of {size}: {what}"}


def error_from(document: Message) -> CheckpointError:
    """The inverse of `error_document`; what is no error of ours comes back as a plain CheckpointError."""
    kind = getattr(errors, document["type"], CheckpointError)
    fields = {name: tuple(v) if name == "tensors" else v for name, v in document.get("fields", {}).items()}
    made: CheckpointError = kind(document["text"], **fields)
    return made


def names(ranks: Collection[int]) -> str:
    """rank 1, or ranks 1, 2"""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, sorted(ranks)))}"


def missing(what: str, ranks: list[int] | dict[int, str], size: int, wait_s: float, state: str) -> CheckpointError:
    """ranks  those that were lost, with how; or, where none was, those that were silent"""
    how = f"gave no sign within {wait_s:g} s"
    if isinstance(ranks, dict):
        how = f"{'is' if len(ranks) == 1 else 'are'} gone ({next(iter(ranks.values()))})"
    return CheckpointError(f"{names(ranks)} of {size} {how}: {what}{next_lines(state)}")


def next_lines(state: str) -> str:
    return (
        f"\n  state  {state}\n  next   look at that rank's output; start the job again, on as many ranks as there are"
    )

"""What the other ranks hear of a failure: the rank, and its reason."""

from __future__ import annotations

from collections.abc import Collection

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.framing import Message

UNTOUCHED = "nothing was committed and nothing was loaded; the previous checkpoint stays the newest"


def of_rank(document: Message, rank: int, size: int, what: str, state: str) -> Message:
    """What the other ranks hear of an error of this rank's, met in `what`."""
    if document.get("foreign"):
        return {**document, "text": f"rank {rank} of {size} failed: {what}: {document['text']}{next_lines(state)}"}
    return {**document, "text": f"{document['text']}\n  rank   {rank} of {size}: {what}"}


def names(ranks: Collection[int]) -> str:
    """rank 1, or ranks 1, 2"""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, sorted(ranks)))}"


def missing(what: str, ranks: list[int] | dict[int, str], size: int, wait_s: float, state: str) -> CheckpointError:
    """ranks  those that were lost, with how; or, where none was, those that were silent"""
    how = f"gave no sign within {wait_s:g} s"
    if isinstance(ranks, dict):
        how = f"{'is' if len(ranks) == 1 else 'are'} gone ({next(iter(ranks.values()))})"
    return CheckpointError(f"{names(ranks)} of {size} {how}: {what}{next_lines(state)}")


def never_came(ranks: list[int], to: int, size: int, waited_s: float) -> CheckpointError:
    """to  the rank that has waited for them to save or load with it, for the first time in this group"""
    return CheckpointError(
        f"{names(ranks)} of {size} did not come to save or load with the others; rank {to} waited {waited_s:.0f} s\n"
        f"  state  {UNTOUCHED}\n"
        "  next   call save, load and warm on all ranks, in the same order; look for a rank that ended, too"
    )


def next_lines(state: str) -> str:
    return (
        f"\n  state  {state}\n  next   look at that rank's output; start the job again, on as many ranks as there are"
    )

"""What no message may carry: names, numbers, addresses and claims out of all bounds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from elastic_checkpoint.net.codec import NUMBER_MAX, Name, short

SLOTS_MAX = 1 << 12  # of one node
_LIST_MAX = 1 << 12  # names of nodes, or hashes, in one message
_NODES_MAX = 1 << 16

Names = Annotated[list[str], Meta(max_length=_LIST_MAX)]
Slot = Annotated[int, Meta(ge=0, le=SLOTS_MAX)]
Slots = Annotated[list[Slot], Meta(max_length=SLOTS_MAX)]
Positive = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Port = Annotated[int, Meta(ge=1, lt=1 << 16)]
Roll = Annotated[list[tuple[str, Name, Port]], Meta(max_length=_NODES_MAX)]  # of nodes, with their addresses
Base64 = Annotated[str, Meta(pattern=r"\A(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z")]


def check_claim(document: dict[str, Any] | None) -> None:
    """Raise ValueError for what is no claim's document."""
    if document is None:
        return
    number = document.get("claim")
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"no claim: {short(document)}")
    check_nonce(document)


def check_nonce(claim: dict[str, Any] | None) -> None:
    """Raise ValueError for a claim whose nonce is none."""
    if claim is not None and not isinstance(claim.get("nonce"), str | None):
        raise ValueError(f"no nonce of a claim: {short(claim)}")

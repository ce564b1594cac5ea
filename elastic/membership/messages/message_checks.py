"""What no message may carry: numbers, addresses, claims and values out of all bounds. Each check raises WireError."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from elastic.membership.messages.failure import check_name
from elastic.membership.messages.wire import WireError
from elastic_checkpoint.net.codec import NUMBER_MAX, short

SLOTS_MAX = 1 << 12  # of one node
LIST_MAX = 1 << 12  # names of nodes, or hashes, in one message
_NODES_MAX = 1 << 16
_PORT_MAX = (1 << 16) - 1


def within(least: int, value: int, most: int) -> None:
    if not least <= value <= most:
        raise WireError(f"{value} is not within {least} and {most}")


def check_addresses(nodes: list[list[Any]]) -> None:
    within(0, len(nodes), _NODES_MAX)
    for one in nodes:
        if not (len(one) == 3 and isinstance(one[0], str) and isinstance(one[1], str) and type(one[2]) is int):
            raise WireError(f"no name, address and port: {short(one)}")
        check_address(one[1], one[2])


def check_address(address: str, port: int) -> None:
    """Whether anybody can be reached there, whoever dials it finds out."""
    check_name(address)
    within(1, port, _PORT_MAX)


def check_claim(document: dict[str, Any] | None) -> None:
    """Raises WireError for what is no claim's document."""
    if document is None:
        return
    number = document.get("claim")
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise WireError(f"no claim: {short(document)}")
    check_nonce(document)


def check_nonce(claim: dict[str, Any] | None) -> None:
    if claim is not None and not isinstance(claim.get("nonce"), str | None):
        raise WireError(f"no nonce of a claim: {short(claim)}")


def decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise WireError(f"no base64: {short(value)}") from wrong

"""What gloo's ranks leave on a view's board, in its real size, for tests and figures without so many processes."""

from __future__ import annotations

import base64
import random

GLOO_BYTES, GLOO_PAIR_BYTES = 154, 8


def gloo_value(rank: int, ranks: int) -> str:
    """In base64, as on the board. As long as the real one of torch 2.13, and as much like the others': an address,
    which is random here, and a number for each pair (tests/pure/test_known_lists.py holds its length to gloo's)."""
    address = random.Random(rank).randbytes(24) + bytes(GLOO_BYTES - 24)
    pairs = b"".join(pair.to_bytes(GLOO_PAIR_BYTES, "little") for pair in range(ranks))
    return base64.b64encode(address + pairs).decode("ascii")

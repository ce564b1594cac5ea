"""What a file holds, or a command prints, to say that this node is to leave. Pure.

leave                            now
leave 90 the pool is drained     within 90 s of being read, and why
hint price went up               save soon, and stay
"""

from __future__ import annotations

import math
import re

from elastic.events import words
from elastic.preemption.notice import Kind

_LINE = re.compile(r"(leave|hint)\b(?:\s+(\d+(?:\.\d+)?)(?:\s*s\b)?(?=\s|$))?\s*(.*)")
_WHY_MAX = 200


def parse_notice(text: str) -> tuple[Kind, float | None, str] | None:
    """Return (kind, seconds that are left, why) of a text's first line; None: it is none of the above."""
    line = next(iter(text.strip().splitlines()), "")
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    left_s = float(found[2]) if found[2] is not None else None
    if left_s is not None and not math.isfinite(left_s):
        return None
    return Kind(found[1]), left_s, words.printable(found[3].strip()[:_WHY_MAX])

"""A notice: word that this node must leave, or may have to soon; by when, on this machine's monotonic clock. Pure.

Clouds say when by their own clock. What counts is how long that is from now, and a machine's wall clock may be wrong by
hours: so the difference is taken by the clock of whoever says it (the Date of its answer) wherever it shows one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from elastic.events import words

_SOONER_S = 2.0  # less is how whole seconds that are counted down come out, on a machine that is busy
_LINE = re.compile(r"(leave|hint)\b(?:\s+(\d+(?:\.\d+)?)(?:\s*s\b)?(?=\s|$))?\s*(.*)")
_WHY_MAX = 200


class Kind(Enum):
    """The weight of a notice. LEAVE: the node is taken. HINT: it may be; what is saved soon is not at risk."""

    LEAVE = "leave"
    HINT = "hint"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Word that a node must leave, or may have to.

    source     who says so: "ec2", "file", a signal's name
    id         tells it from others of its source; the same again is the same notice
    why        in words, for people
    by_s       until when the node is there, by time.monotonic(); None: nobody says
    node       which, by its host's name
    withdrawn  it was said before, and is not any more
    sooner     it was said before, with more time
    """

    source: str
    id: str
    kind: Kind = Kind.LEAVE
    why: str = ""
    by_s: float | None = None
    node: str = ""
    withdrawn: bool = False
    sooner: bool = False

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds that are left, never below 0; None: nobody says."""
        return None if self.by_s is None else max(0.0, self.by_s - now_s)

    def sentence(self, now_s: float) -> str:
        left_s = self.left_s(now_s)
        return self.why if left_s is None else f"{self.why}, in {words.seconds(left_s)}"


def changes(before: Mapping[str, Notice], found: Iterable[Notice]) -> list[Notice]:
    """Return what a source says anew, then deadlines that came nearer, then, withdrawn, what it says no more.

    before  what it said, by id
    """
    now = {notice.id: notice for notice in found}
    new = [notice for id, notice in now.items() if id not in before]
    nearer = [
        replace(notice, sooner=True) for id, notice in now.items() if id in before and _sooner(notice, before[id])
    ]
    return [*new, *nearer, *(replace(notice, withdrawn=True) for id, notice in before.items() if id not in now)]


def in_force(before: Mapping[str, Notice], found: Iterable[Notice]) -> dict[str, Notice]:
    """Return the notices by id, each with the deadline that it was last told with."""
    now = {notice.id: notice for notice in found}
    return {
        id: before[id] if id in before and not _sooner(notice, before[id]) else notice for id, notice in now.items()
    }


def _sooner(notice: Notice, said: Notice) -> bool:
    """Tell whether the deadline came nearer. One that is put off counts as before: what was begun on it goes on."""
    return notice.by_s is not None and (said.by_s is None or notice.by_s < said.by_s - _SOONER_S)


def by_clock_s(at_t: float, *, clock_t: float | None, wall_t: float, now_s: float, at_most_s: float) -> float:
    """Return when, by time.monotonic(), somebody's clock will show `at_t`.

    at_t       unix seconds, by that clock
    clock_t    what it shows now; None: it does not say, and this machine's wall clock stands in
    now_s      time.monotonic()
    at_most_s  nobody says it so long ahead: a clock that is wrong promises no more than this
    """
    left_s = at_t - (clock_t if clock_t is not None else wall_t)
    return now_s + min(max(left_s, 0.0), at_most_s)


def parse_notice(text: str) -> tuple[Kind, float | None, str] | None:
    """Return (kind, seconds that are left, why) of the first line of a file, or of what a command printed.

        leave                            now
        leave 90 the pool is drained     within 90 s of being read, and why
        hint price went up               save soon, and stay

    None: it is none of these.
    """
    line = next(iter(text.strip().splitlines()), "")
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    left_s = float(found[2]) if found[2] is not None else None
    if left_s is not None and not math.isfinite(left_s):
        return None
    return Kind(found[1]), left_s, words.printable(found[3].strip()[:_WHY_MAX])

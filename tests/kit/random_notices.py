"""Notices at drawn moments of a run: where a node is held, who is told, and by what. A pure function of a seed.

who            where the run stands                                    who is told
NEWCOMER       one trains, another comes                               the one that comes
COORDINATOR    two train                                               the first
BOTH           as for either; the one that has the moment is held      both, and all is saved
ALONE          nobody trains; one comes                                it
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tests.kit.metadata import SAYS

T = TypeVar("T")

BEGINNINGS = ("imports", "begins", "start", "form", "formed", "loading", "loaded", "warming up")
STEPS = ("data", "forward", "compiling", "backward", "exchange", "update", "applied")
BETWEEN = ("between", "section", "evaluate", "evaluating")
OF_COORDINATORS = ("on coordinator", "save", "saving", "saved")
OF_FIRST_NODES = ("claim", "load")
VIEWS = ("form", "formed", "transfer")
"""The moments: those of tests/kit/told_at.py. "saving" is a save whose writer process does not get on."""
SOURCES = ("SIGTERM", "file", *SAYS)


class Who(Enum):
    NEWCOMER, COORDINATOR, BOTH, ALONE = "newcomer", "coordinator", "both", "alone"


@dataclass(frozen=True)
class Told:
    """One notice. of_newcomer: of BOTH, who is held"""

    who: Who
    moment: str
    of_newcomer: bool
    source: str

    def __str__(self) -> str:
        held = f", {'the newcomer' if self.of_newcomer else 'the coordinator'} held" if self.who is Who.BOTH else ""
        return f"{self.who.value} told by {self.source} at {self.moment!r}{held}"


def drawn(seed: int, count: int) -> list[Told]:
    """As many; each case and each source comes before any comes again."""
    draw = random.Random(seed)
    cases, sources = _in_turns(draw, _cases()), _in_turns(draw, SOURCES)
    return [Told(*next(cases), source=next(sources)) for _ in range(count)]


def _cases() -> list[tuple[Who, str, bool]]:
    of_newcomers = dict.fromkeys((*BEGINNINGS, *VIEWS, *STEPS, *BETWEEN))
    of_coordinators = dict.fromkeys((*VIEWS, *STEPS, *BETWEEN, *OF_COORDINATORS))
    return [
        *((Who.NEWCOMER, moment, True) for moment in of_newcomers),
        *((Who.COORDINATOR, moment, False) for moment in of_coordinators),
        *((Who.BOTH, moment, True) for moment in of_newcomers),
        *((Who.BOTH, moment, False) for moment in of_coordinators),
        *((Who.ALONE, moment, True) for moment in dict.fromkeys((*OF_FIRST_NODES, *BEGINNINGS))),
    ]


def _in_turns(draw: random.Random, things: Sequence[T]) -> Iterator[T]:
    """All in a drawn order, then all in another, without end."""
    while True:
        yield from draw.sample(things, len(things))

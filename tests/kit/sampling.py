"""Which tests are left to `make nightly`? The one place that decides it.

    @pytest.mark.nightly                      the test runs in `make nightly` only
    @pytest.mark.nightly(sample=2)            of its cases, `make test` runs two, and others each day
    @pytest.mark.nightly(sample=2, of="…")    of all tests with this mark, in any file, it runs two
    pytestmark = pytest.mark.nightly(…)       the same of a file's tests that have no mark of their own

Promises  what a sample leaves out is run within three weeks, since samples follow each other through the cases;
          ROTATION=N runs the sample of a day again, and pytest prints N; of a file or test that is asked for by name,
          and with -k, every case runs.
Leaves    what a marked test promises to the tests of its family: a mark may thin what is asked each day of one kind of
          promise, and takes none of it away.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from typing import Any, TypeVar

Case = TypeVar("Case")

NIGHTLY = bool(os.environ.get("NIGHTLY"))
# Also for pytest-xdist's workers, which may be started on the other side of midnight.
ROTATION = int(os.environ.setdefault("ROTATION", str(date.today().toordinal())))
EXAMPLES, EXAMPLES_NIGHTLY = 25, 100
"""Of each property that hypothesis looks for a counterexample to."""


def describe() -> str:
    if NIGHTLY:
        return "every test and every case (NIGHTLY=1)"
    return f"a sample of the longest tests' cases; ROTATION={ROTATION} repeats it, `make nightly` runs all"


def examples(nightly: int = EXAMPLES_NIGHTLY) -> int:
    """How many hypothesis makes of a property of which it makes `nightly` at night."""
    return nightly if NIGHTLY else max(1, nightly * EXAMPLES // EXAMPLES_NIGHTLY)


def seeds(count: int, *, sample: int) -> range:
    """Of `count` random cases: all, or `sample` that follow yesterday's."""
    if NIGHTLY:
        return range(count)
    begin = ROTATION % (count // sample) * sample
    return range(begin, begin + sample)


def sampled(cases: Sequence[Case], sample: int, rotation: int) -> list[Case]:
    """`sample` of the cases, as far from each other as they can be; each day those behind yesterday's."""
    count = len(cases)
    return [cases[(rotation + at * count // sample) % count] for at in range(sample)] if sample < count else [*cases]


def left_to_the_night(items: Sequence[Any]) -> set[str]:
    """The ids of those of pytest's items that are not run now."""
    if NIGHTLY:
        return set()
    left: set[str] = set()
    families: dict[tuple[str, int], list[Any]] = {}
    for item in items:
        if mark := _mark(item):
            left.add(item.nodeid)
            family = mark.kwargs.get("of", item.nodeid.partition("[")[0])
            families.setdefault((family, mark.kwargs.get("sample", 0)), []).append(item)
    for (_, sample), cases in families.items():
        left.difference_update(item.nodeid for item in sampled(cases, sample, ROTATION))
    return left


def _mark(item: Any) -> Any:
    """Return what says when an item is run: a case's own mark, which pytest has behind its test's; else None."""
    own = [mark for mark in item.own_markers if mark.name == "nightly"]
    return own[-1] if own else item.get_closest_marker("nightly")

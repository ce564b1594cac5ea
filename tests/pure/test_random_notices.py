"""Of the drawn notices: no moment of a run is forgotten."""

from __future__ import annotations

from collections import Counter

from elastic.events.observer import MOMENTS
from tests.kit.random_notices import SOURCES, drawn

ENOUGH = 100


def test_a_node_is_told_at_every_moment_that_an_observer_knows_and_by_every_source() -> None:
    """At `finish` there is nothing to leave from: the run's end is the same."""
    notices = drawn(7, ENOUGH)
    assert {told.moment for told in notices} >= set(MOMENTS) - {"finish"}
    each = Counter(told.source for told in notices)
    assert set(each) == set(SOURCES)
    assert max(each.values()) - min(each.values()) <= 1


def test_the_same_seed_draws_the_same_notices() -> None:
    assert drawn(7, ENOUGH) == drawn(7, ENOUGH)
    assert drawn(7, ENOUGH) != drawn(8, ENOUGH)

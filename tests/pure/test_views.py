"""Views, read from events: who was lost between two of them."""

from __future__ import annotations

from elastic.events.event import Event
from elastic.report.views import views

ALL = ("a", "b", "c")


def told(*lines: tuple[str, str, int, tuple[str, ...]]) -> list[Event]:
    """(event, worker, generation, workers of the view)"""
    return [
        {"event": event, "worker": worker, "generation": generation, "workers": list(workers), "t": float(at)}
        for at, (event, worker, generation, workers) in enumerate(lines)
    ]


def test_who_held_no_state_and_comes_again_was_not_lost() -> None:
    broke = told(
        *(("view_formed", worker, 1, ALL) for worker in ALL),
        ("loaded", "a", 1, ALL),
        ("view_formed", "a", 2, ("a",)),
        *(("view_formed", worker, 3, ("a", "b")) for worker in "ab"),
        ("loaded", "b", 3, ("a", "b")),
    )

    assert [view.lost for view in views(broke)] == [(), ("c",), ()]


def test_who_held_the_state_was_lost_even_if_it_comes_again() -> None:
    evicted = told(
        *(("view_formed", worker, 1, ALL) for worker in ALL),
        *(("loaded", worker, 1, ALL) for worker in ALL),
        *(("view_formed", worker, 2, ("a", "b")) for worker in "ab"),
        *(("view_formed", worker, 3, ALL) for worker in ALL),
    )

    assert [view.lost for view in views(evicted)] == [(), ("c",), ()]

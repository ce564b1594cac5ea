"""Which tests `make test` leaves to the night: a mark says it, and a case's own one before its test's."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.kit import sampling


@dataclass
class Item:
    nodeid: str
    own_markers: list[pytest.Mark] = field(default_factory=list)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.own_markers if mark.name == name), None)


def of(**kwargs: object) -> pytest.Mark:
    return pytest.mark.nightly(**kwargs).mark


def test_of_a_family_a_sample_is_run_and_at_night_all(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(f"test_a[{at}]", [of(sample=2)]) for at in range(6)] + [Item("test_b")]
    monkeypatch.setattr(sampling, "NIGHTLY", False)
    run = []
    for day in range(3):
        monkeypatch.setattr(sampling, "ROTATION", day)
        left = sampling.left_to_the_night(items)
        assert len(left) == 4
        run += [item.nodeid for item in items if item.nodeid not in left]
    assert {*run} == {item.nodeid for item in items}
    monkeypatch.setattr(sampling, "NIGHTLY", True)
    assert sampling.left_to_the_night(items) == set()


def test_a_case_with_a_mark_of_its_own_is_left_to_the_night(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest has a test's mark before its case's: a case of two minutes was drawn with the others by day."""
    monkeypatch.setattr(sampling, "NIGHTLY", False)
    items = [Item("test_a[1]", [of(sample=2)]), Item("test_a[2]", [of(sample=2), of()])]
    for day in range(4):
        monkeypatch.setattr(sampling, "ROTATION", day)
        assert sampling.left_to_the_night(items) == {"test_a[2]"}

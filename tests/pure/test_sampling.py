"""What `make test` leaves to the night is run within days, and no promise is left out of a day altogether."""

from __future__ import annotations

import pytest

from elastic.drill.report.findings import PROMISES
from tests.kit import sampling
from tests.kit.planted.catalogue import CATALOGUE
from tests.processes.test_planted import broken_by


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("sample", range(1, 5))
def test_samples_that_follow_each_other_are_all_cases(count: int, sample: int) -> None:
    days = -(-count // sample)
    for first in (0, 7, 739_942):
        drawn = [sampling.sampled(range(count), sample, first + day) for day in range(days)]
        assert all(len(set(cases)) == len(cases) == min(sample, count) for cases in drawn)
        assert set().union(*drawn) == set(range(count))


def test_a_sample_grows_until_it_covers_all_that_can_be_covered() -> None:
    """Of the planted bugs each day's break every promise of a drill."""
    broken = {name: broken_by(name) for name in CATALOGUE}
    for rotation in range(len(broken)):
        chosen = sampling.sampled(list(broken), 4, rotation, broken_by)
        assert set().union(*(broken[name] for name in chosen)) == PROMISES.keys()
        assert len(chosen) == len(set(chosen)) < 15


def test_a_day_s_random_cases_are_among_the_night_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "NIGHTLY", False)
    seen = set[int]()
    for rotation in range(8):
        monkeypatch.setattr(sampling, "ROTATION", rotation)
        assert len(sampling.seeds(2000, sample=250)) == 250
        seen.update(sampling.seeds(2000, sample=250))
    monkeypatch.setattr(sampling, "NIGHTLY", True)
    assert seen == set(sampling.seeds(2000, sample=250)) == set(range(2000))

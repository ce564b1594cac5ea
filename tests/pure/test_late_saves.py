"""Uploads that are slower than losses never commit, and each alone looks well: somebody has to say so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import elastic_checkpoint
from elastic.loop.storage.saver import Saver
from elastic.loop.storage.under_way import LateSaves, UnderWay


def test_one_is_chance_the_second_in_a_row_is_said_and_then_each_time_that_they_are_twice_as_many() -> None:
    late = LateSaves()
    said = [late.came_too_late(took_s=90.0, newest="step 100") for _ in range(9)]
    assert [number for number, words in enumerate(said, 1) if words is not None] == [2, 4, 8]


def test_what_is_said_names_how_long_it_took_what_is_at_risk_and_what_helps() -> None:
    late = LateSaves()
    late.came_too_late(took_s=90.0, newest="step 100")
    words = late.came_too_late(took_s=90.0, newest="step 100")
    assert words is not None
    assert "2 saves in a row came too late" in words
    for part in ("  found  the last one took 90 s", "step 100 is the newest", "  next   give the run storage"):
        assert part in words


class Save:
    """One that has ended."""

    done, ended_s, staged_s, joined_s, beside_s = True, 95.0, None, 0.0, 0.0

    def __init__(self, failure: elastic_checkpoint.CheckpointError | None) -> None:
        self._failure = failure

    def wait(self) -> object:
        if self._failure is not None:
            raise self._failure
        return "a commit"


@pytest.mark.parametrize(("between", "warned"), [([], True), ([None], False)], ids=["in a row", "one is committed"])
def test_a_coordinator_counts_those_that_a_newer_claim_of_its_own_run_made_void(
    between: list[elastic_checkpoint.CheckpointError | None], warned: bool
) -> None:
    """Nothing failed, so `Saving(failures_max=)` never stopped the run: for days nothing was saved, and nobody knew."""
    dropped = elastic_checkpoint.SaveDropped("the job goes on under 2", step=7)
    warnings: list[str] = []
    saver: Any = SimpleNamespace(
        _warmed=True,
        _claim=2,
        _clock=lambda: 100.0,
        _late_saves=LateSaves(),
        _console=SimpleNamespace(warn=warnings.append),
        newest="step 3",
        schedule=SimpleNamespace(owes_one=False, committed=lambda **_: None),
    )
    saver._committed = lambda *_, **__: saver._late_saves.committed()
    saver._under_way = [
        UnderWay(cast(Any, Save(failure)), cast(Any, None), claim=1, begun_s=5.0, called_s=0.0)
        for failure in [dropped, *between, dropped]
    ]
    Saver.poll(saver)
    assert saver.schedule.owes_one
    assert bool(warnings) == warned
    assert not warned or "the last one took 90 s" in warnings[0]

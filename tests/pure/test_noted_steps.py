"""When is a step noted beside the save before it? Once the view has compared it, or its coordinator is alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic.loop.restoring.restorer import StateRestorer
from elastic.loop.storage.step_digest import StepDigest

NOTED = StepDigest(step=4, digest=1, shares=8, batches=8, gradients=2, weights=3)


class Written(list[StepDigest]):
    """A saver's notes, as they are written."""

    def note(self, step: StepDigest) -> None:
        self.newest = step

    def write_note(self) -> None:
        self.append(self.newest)


@pytest.fixture
def view() -> SimpleNamespace:
    return SimpleNamespace(generation=1, world_size=3)


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def restorer(view: SimpleNamespace, written: Written) -> StateRestorer:
    config = SimpleNamespace(url="memory://run", storage_options={})
    context: Any = SimpleNamespace(config=config, events=None, console=None)
    unused: Any = None
    of_view: Any = view
    saver: Any = written
    coordinator = StateRestorer(context, unused, of_view, unused, unused, unused)
    coordinator.saver = saver
    return coordinator


def test_it_is_written_once_the_view_has_compared_the_weights(restorer: StateRestorer, written: Written) -> None:
    restorer.applied(NOTED)
    assert restorer.weights_noted(5) == NOTED.weights
    assert written == []
    restorer.agreed()
    assert written == [NOTED]


def test_another_view_has_not_compared_it(restorer: StateRestorer, view: SimpleNamespace, written: Written) -> None:
    """Its newcomers know no weights to compare; a damaged coordinator's would be held against the script."""
    restorer.applied(NOTED)
    view.generation = 2
    assert restorer.weights_noted(5) == 0
    restorer.agreed()
    assert written == []


def test_who_is_alone_writes_it_at_once(restorer: StateRestorer, view: SimpleNamespace, written: Written) -> None:
    view.world_size = 1
    restorer.applied(NOTED)
    assert written == [NOTED]

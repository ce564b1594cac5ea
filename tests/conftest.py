"""Which script the drills of this project's own tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from elastic.drill.cluster import Cluster


@pytest.fixture(scope="session")
def elastic_script() -> Path:
    return Path(__file__).parent / "kit" / "programs" / "small.py"


@pytest.fixture
def elastic_cluster(elastic_cluster: Callable[..., Cluster]) -> Iterator[Callable[..., Cluster]]:
    """The plugin's; and what holds of every run's events is asserted of each that ends."""
    made: list[Cluster] = []

    def make(**arguments: Any) -> Cluster:
        made.append(elastic_cluster(**arguments))
        return made[-1]

    yield make
    from tests.kit.observed import assert_observed

    for run in made:
        assert_observed(run.events())


settings.register_profile("any machine", deadline=None)  # a busy one is no failure
settings.load_profile("any machine")

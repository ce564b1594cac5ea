"""Fixtures that run a training script for real, hurt it on purpose, and hand back what became of it.

    def test_a_killed_worker_changes_nothing(cluster, undisturbed):
        run = cluster(workers=4, steps=12, seed=7)
        run.kill(worker=3, when=At(step=5, phase="backward"))
        end = run.finish(within_s=60)
        assert end.weights_sha256 == undisturbed(steps=12, seed=7).weights_sha256

A project overrides `elastic_script` with its own script, which takes the run's URL as its first argument and the
options as flags (steps=12 is --steps 12). Loaded by every pytest run where elastic is installed, so it imports nothing
heavy until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from elastic.drill.cluster import Cluster
    from elastic.drill.end import End


@pytest.fixture(scope="session")
def elastic_script() -> Path:
    """The training script that `cluster` runs; a project overrides this fixture."""
    raise pytest.UsageError(
        "override the fixture `elastic_script` in conftest.py: return the path of a training script"
    )


@pytest.fixture
def cluster(tmp_path: Path, elastic_script: Path) -> Iterator[Callable[..., Cluster]]:
    """cluster(workers=4, steps=12, …): a run that has not started yet. See Cluster; options become flags.

    Each call is another run, unless `url` names an earlier one's. Whatever still runs is killed at the end.
    """
    with ExitStack() as running:
        made = 0

        def make(*, url: str | Path | None = None, **arguments: Any) -> Cluster:
            nonlocal made
            made += 1
            run = _cluster(elastic_script, tmp_path / f"drill-{made}", url or tmp_path / f"run-{made}", arguments)
            return running.enter_context(run)

        yield make


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, elastic_script: Path) -> Callable[..., End]:
    """undisturbed(steps=12, …): the end of that run in one process that nobody touched; done once per session."""
    ends: dict[tuple[tuple[str, Any], ...], End] = {}

    def run(*, within_s: float = 120, **arguments: Any) -> End:
        key = tuple(sorted(arguments.items()))
        if key not in ends:
            folder = tmp_path_factory.mktemp("undisturbed")
            with _cluster(elastic_script, folder / "drill", folder / "run", dict(arguments)) as alone:
                end = alone.finish(within_s=within_s)
            assert end.verdict.ok, f"the undisturbed run itself fails\n{end.verdict}\n{end.output}"
            ends[key] = end
        return ends[key]

    return run


def _cluster(script: Path, folder: Path, url: str | Path, arguments: dict[str, Any]) -> Cluster:
    """Splits the arguments into Cluster's own and the script's; `steps` is both's."""
    from elastic.drill.cluster import Cluster

    own = {name: arguments.pop(name) for name in _OF_CLUSTER & arguments.keys()}
    script = arguments.pop("script", script)
    return Cluster(script, [str(url), *_flags(arguments)], url=url, folder=folder, steps=arguments.get("steps"), **own)


_OF_CLUSTER = {
    "workers",
    "launcher",
    "nodes",
    "nodes_max",
    "options",
    "restarts",
    "env",
    "observed",
    "plan",
    "storage_options",
}


def _flags(options: dict[str, Any]) -> Sequence[str]:
    return [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]

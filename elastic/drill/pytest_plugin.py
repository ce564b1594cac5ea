"""Fixtures that run a training script for real, break it on purpose, and hand back what became of it.

    def test_a_killed_worker_changes_nothing(elastic_cluster, elastic_undisturbed):
        run = elastic_cluster(workers=4, steps=12, seed=7)
        run.kill(worker=3, when=At(step=5, phase="backward"))
        end = run.finish(within_s=60)
        assert end.weights_sha256 == elastic_undisturbed(steps=12, seed=7).weights_sha256

    def test_random_faults_change_nothing(elastic_cluster, elastic_undisturbed):
        run = elastic_cluster(workers=4, steps=40, launcher="elastic", faults="kill,stop,leave", rate=0.1)
        assert run.finish(within_s=120).weights_sha256 == elastic_undisturbed(steps=40).weights_sha256

Random faults are drawn from the test's seed, `elastic_drill_seed`. A test that fails says which `--elastic-drill-seed`
draws the same again. Tests that use these fixtures are marked `elastic_drill`: -m "not elastic_drill" leaves them out.

A project overrides `elastic_script` with its own script, which takes the run's URL as its first argument and the
options as flags (steps=12 is --steps 12, amp=True is --amp, and amp=False nothing). Where a test fails, each of its
runs' verdicts is printed, whole.

Loaded by every pytest run where elastic is installed, so it imports nothing heavy until a fixture is used.
"""

from __future__ import annotations

import inspect
import secrets
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from elastic.drill.cluster import Cluster
    from elastic.drill.drilled_tests import Remembering, UndisturbedEnds
    from elastic.drill.end import End
    from elastic.drill.faults import Plan

_SEED = pytest.StashKey[int]()
_RUNS = pytest.StashKey["list[Remembering]"]()  # of a test
_UNDISTURBED = pytest.StashKey["list[End]"]()  # those that a test compares with
_FIXTURES = {"elastic_cluster", "elastic_undisturbed", "elastic_drill_seed"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("elastic").addoption(
        "--elastic-drill-seed",
        type=int,
        metavar="N",
        help="of what drills draw at random (default: another one each time)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "elastic_drill: runs a training script for real, and may break it")
    asked: int | None = config.getoption("--elastic-drill-seed")
    config.stash[_SEED] = secrets.randbelow(10**6) if asked is None else asked


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("elastic_drill")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and "elastic_drill_seed" in getattr(item, "funcargs", ()):
        report.sections += _sections(item)
        seed = item.config.stash[_SEED]
        report.sections.append(("drill", f"--elastic-drill-seed {seed} draws the same again"))
    return report


def _sections(item: pytest.Item) -> list[tuple[str, str]]:
    """Return titles and texts that a failed test's report shows of its runs."""
    runs = item.stash.get(_RUNS, [])
    if not runs:
        return []
    from elastic.drill.drilled_tests import sections

    undisturbed: list[End] = item.stash.get(_UNDISTURBED, [])
    try:
        return sections(runs, undisturbed)
    except Exception as error:  # of a script or events that nobody foresaw: the test's own failure must be seen
        return [("drill", f"what became of the runs cannot be said: {type(error).__name__}: {error}")]


@pytest.fixture
def elastic_drill_seed(request: pytest.FixtureRequest) -> int:
    """Return a seed of this test's own, made of its name and of --elastic-drill-seed, which a failure tells."""
    text = f"{request.config.stash[_SEED]} {request.node.nodeid}"
    return zlib.crc32(text.encode())


@pytest.fixture(scope="session")
def elastic_script() -> Path:
    """Return the training script that `elastic_cluster` runs; a project overrides this fixture."""
    raise pytest.UsageError(
        "override the fixture `elastic_script` in conftest.py: return the path of a training script"
    )


@pytest.fixture
def elastic_cluster(
    tmp_path: Path, elastic_script: Path, elastic_drill_seed: int, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Cluster]]:
    """Yield a function that makes runs: its arguments are Cluster's, and others become flags of the script.

    What elastic_cluster(workers=4, steps=12, …) returns has not started yet.
    faults="kill,stop", rate=0.05 draws so many faults per step, of the kinds that strike workers and one launch
    survives; `elastic drill` knows more.
    Each call is another run, unless `url` names an earlier one's. Whatever still runs is killed at the end.
    """
    with ExitStack() as running:
        made = 0

        def make(
            *, url: str | Path | None = None, faults: str | None = None, rate: float = 0.05, **arguments: Any
        ) -> Cluster:
            nonlocal made
            made += 1
            script = _found(arguments.pop("script", elastic_script), request)
            if faults is not None:
                arguments["plan"] = _drawn(elastic_drill_seed + made, faults, rate, arguments)
            run = _cluster(script, tmp_path / f"drill-{made}", url or tmp_path / f"run-{made}", arguments)
            request.node.stash.setdefault(_RUNS, []).append(run)
            return running.enter_context(run)

        yield make


@pytest.fixture(scope="session")
def _undisturbed_ends(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> UndisturbedEnds:
    """Return the ends of undisturbed runs, kept by script and arguments: a test module may have a script of its own."""
    from elastic.drill.drilled_tests import UndisturbedEnds

    one_of_several = hasattr(request.config, "workerinput")  # pytest-xdist's
    return UndisturbedEnds(tmp_path_factory.getbasetemp().parent if one_of_several else None)


@pytest.fixture
def elastic_undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
    elastic_script: Path,
    _undisturbed_ends: UndisturbedEnds,
    request: pytest.FixtureRequest,
) -> Callable[..., End]:
    """Return a function that runs the script in one process that nobody touches, once, and returns the run's end.

    elastic_undisturbed(steps=12, …) takes what elastic_cluster takes, and within_s.
    """

    def run(*, within_s: float = 120, **arguments: Any) -> End:
        script = _found(arguments.pop("script", elastic_script), request)

        def made() -> End:
            folder = tmp_path_factory.mktemp("undisturbed")
            with _cluster(script, folder / "drill", folder / "run", dict(arguments)) as alone:
                end = alone.finish(within_s=within_s)
            assert end.verdict.ok, f"the undisturbed run itself fails\n{end.verdict}\n{end.output}"
            return end

        end = _undisturbed_ends.get(repr((str(script), sorted(arguments.items()))), made)
        request.node.stash.setdefault(_UNDISTURBED, []).append(end)
        return end

    return run


def _found(script: str | Path, request: pytest.FixtureRequest) -> Path:
    """Return the file of a relative path: in the working directory, beside the test or in pytest's root.

    Raise pytest.UsageError if there is no such file.
    """
    folders = [Path.cwd(), request.path.parent, request.config.rootpath]
    found = next((folder / script for folder in folders if (folder / script).is_file()), None)
    if found is None:
        looked = ", ".join(dict.fromkeys(map(str, folders)))
        raise pytest.UsageError(f"elastic_script: there is no file {script}, looked for in {looked}")
    return found


def _cluster(script: Path, folder: Path, url: str | Path, arguments: dict[str, Any]) -> Remembering:
    """Make a run from arguments that are Cluster's own, and others that become the script's flags; `steps` is both."""
    from elastic.drill.drilled_tests import Remembering

    of_cluster = inspect.signature(Remembering).parameters.keys() - _NOT_TO_SAY
    own = {name: arguments.pop(name) for name in of_cluster & arguments.keys()}
    steps = arguments.get("steps")
    return Remembering(script, [str(url), *_flags(arguments)], url=url, folder=folder, steps=steps, **own)


def _drawn(seed: int, kinds: str, rate: float, arguments: dict[str, Any]) -> Plan:
    """Draw a plan, and make room for its faults in `arguments`. Raises pytest.UsageError if that cannot be done."""
    from elastic.drill.faults import NAMED, Plan
    from elastic.drill.plan.draw import draw_faults

    asked = kinds.split(",")
    workers, nodes = arguments.get("workers") or 1, arguments.get("nodes", 1)
    kind_of = {name: named.kind for name, named in NAMED.items()}
    able = [name for name, kind in kind_of.items() if not kind.for_command and (not kind.restarts or nodes > 1)]
    unable = sorted(set(asked) - set(able))
    if unable or "steps" not in arguments or "plan" in arguments:
        raise pytest.UsageError(
            f"elastic_cluster(faults={kinds!r}, …) draws a plan: it takes steps=, no plan=, "
            f"and kinds of {', '.join(able)}"
            + (f"; {', '.join(unable)}: for `elastic drill` only" if kind_of.keys() >= set(unable) != set() else "")
        )
    faults = draw_faults(
        seed,
        kinds=asked,
        rate=rate,
        steps=arguments["steps"],
        workers=workers,
        nodes=nodes,
        resume_workers=workers,
        replica_size=arguments.get("replica_size", 1),
    )
    if nodes > 1 and any(kind_of[name].takes_node for name in asked):
        arguments.setdefault("nodes_max", nodes + 1)  # else the others would wait for the node that is gone
    arguments.setdefault("restarts", max(_RESTARTS, 1 + len(faults)))  # as `elastic drill`: all may strike one place
    return Plan(faults, seed)


_RESTARTS = 3
_NOT_TO_SAY = {"script", "args", "url", "folder", "steps", "module", "ready"}  # of a cluster; some are the script's


def _flags(options: dict[str, Any]) -> Sequence[str]:
    """Return options as flags: steps=12 is --steps 12, amp=True is --amp, and amp=False nothing."""
    flags: list[str] = []
    for name, value in options.items():
        if value is not False:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags

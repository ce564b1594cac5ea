"""Which script the drills of our own tests run; which tests are run at all, and when: kit/sampling.py, kit/order.py.

What holds of every test: it leaves the process's signal handlers as it found them.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.kit import order, sampling

if TYPE_CHECKING:
    from elastic.drill.cluster import Cluster
    from elastic.drill.end import End

# torch's TCPStore asks for its peer's name at every connection. Where a name server loses a question, one in 60 on some
# machines, it stands there for 5 s, unless this says otherwise: resolv.conf(5).
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(autouse=True)
def _signal_handlers_are_left_as_found() -> Iterator[None]:
    """A handler that stays is met by processes that later tests fork."""
    found = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield
    left = {number: signal.getsignal(number) for number in found}
    for number, handler in found.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    debugged = type(getattr(left[signal.SIGINT], "__self__", None)).__name__ == "Pdb"
    assert debugged or left == found


@pytest.fixture(scope="session", autouse=True)
def _rescue_copies_stay_out_of_the_repository(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["ELASTIC_RESCUE"] = str(tmp_path_factory.mktemp("rescued"))


@pytest.fixture(scope="session")
def elastic_script() -> Path:
    return Path(__file__).parent / "kit" / "programs" / "small.py"


@pytest.fixture
def elastic_cluster(elastic_cluster: Callable[..., Cluster]) -> Iterator[Callable[..., Cluster]]:
    """The plugin's, of forked processes; and what holds of every run's events is asserted of each that ends."""
    from tests.kit.forkserver import ForkedMachine

    made: list[Cluster] = []

    def make(**arguments: Any) -> Cluster:
        made.append(elastic_cluster(**{"hosting": ForkedMachine(), **arguments}))
        return made[-1]

    yield make
    from tests.kit.observed import assert_observed

    for run in made:
        assert_observed(run.events())


@pytest.fixture
def elastic_undisturbed(elastic_undisturbed: Callable[..., End]) -> Callable[..., End]:
    from tests.kit.forkserver import ForkedMachine

    return lambda **arguments: elastic_undisturbed(**{"hosting": ForkedMachine(), **arguments})


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, whose processes would ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "nightly(sample, of): for `make nightly`, or all but a sample is")


def pytest_report_header() -> str:
    return f"tests: {sampling.describe()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"tests: {sampling.describe()}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.keyword:
        return
    files = [Path(arg.partition("::")[0]).resolve() for arg in config.args if ".py" in arg]
    left = sampling.left_to_the_night([item for item in items if item.path not in files])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
    items[:] = [item for item in items if item.nodeid not in left]
    if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = _for_workers(items, workers)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: a collection of garbage that looks through all of it takes 0.4 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _for_workers(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    return order.dealt(files, {file: Path(file).parent.name for file in files}, workers)


# A busy machine is no failure.
settings.register_profile("any machine", deadline=None, max_examples=sampling.examples())
settings.load_profile("any machine")

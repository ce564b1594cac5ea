"""Hosts for the tests of whole hosts; where this machine cannot have any, they are skipped, except in CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.hosts.hosts import missing
from tests.kit.host_runs import HostRun
from tests.kit.hosts import Hosts
from tests.kit.observed import assert_observed


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    """hosts(4): so many, on a network of their own."""
    if (why := missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"hosts: {why}")
    with ExitStack() as running:
        yield lambda count: running.enter_context(Hosts(count, tmp_path / "hosts"))


@pytest.fixture
def host_run(hosts: Callable[[int], Hosts], tmp_path: Path) -> Iterator[Callable[..., HostRun]]:
    """host_run(4, nodes="1:4", steps=300): a run on so many hosts, of which none has joined yet."""
    made: list[HostRun] = []

    def make(count: int, **arguments: Any) -> HostRun:
        made.append(HostRun(hosts(count), tmp_path / f"run-{len(made)}", **arguments))
        return made[-1]

    yield make
    for run in made:
        assert_observed(run.events())

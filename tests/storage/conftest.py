"""Every kind of storage that is promised, each fresh for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint import Checkpointer
from checkpoint.testing import Faults, Plan
from tests.kit import rgw as ceph
from tests.kit.s3 import S3Server, s3_server

_count = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        server.new_bucket("runs")
        yield server


@pytest.fixture(scope="session")
def rgw() -> Iterator[S3Server]:
    """Ceph's gateway with a bucket `runs`. Without Ceph's packages these tests are skipped, except in CI."""
    if ceph.missing():
        lacking = f"needs Ceph's RADOS Gateway ({', '.join(ceph.missing())} not found): {ceph.HOW_TO_INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(lacking)
        pytest.skip(lacking)
    with ceph.rgw_server() as server:
        server.new_bucket("runs")
        yield server


@pytest.fixture(params=["s3", "rgw"])
def any_s3(request: pytest.FixtureRequest) -> S3Server:
    """Each S3 server in turn: moto's imitation, and Ceph's."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(params=["local", "memory", "faulty", "s3", "rgw"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """An empty (URL, storage options), once for each kind of storage."""
    number = next(_count)
    if request.param == "local":
        return str(tmp_path / "runs" / "x"), {}
    if request.param == "memory":
        return f"memory://run-{number}", {}
    if request.param == "faulty":  # without faults it must be like any other
        return Faults(Plan()).around(f"memory://run-{number}")
    server: S3Server = request.getfixturevalue(request.param)
    return f"s3://runs/folder/run-{number}", server.options


@pytest.fixture
def checkpointer() -> Iterator[Callable[..., Checkpointer]]:
    """Makes checkpointers that are closed when the test ends."""
    made: list[Checkpointer] = []

    def make(*args: Any, **options: Any) -> Checkpointer:
        made.append(Checkpointer(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()

"""Every kind of storage that is promised, each fresh for each test."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic_checkpoint import Checkpointer
from elastic_checkpoint.save.writer import WRITER_MODULE
from elastic_checkpoint.testing import Faults, Plan
from tests.kit import rgw as ceph
from tests.kit.s3 import S3Server, s3_server
from tests.storage.beside import Trainer, command_of

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


@pytest.fixture(params=["local", "memory", "faulty", "s3", "rgw", "obstore"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """An empty (URL, storage options), once for each kind of storage."""
    number = next(_count)
    if request.param == "local":
        return str(tmp_path / "runs" / "x"), {}
    if request.param == "memory":
        return f"memory://run-{number}", {}
    if request.param == "faulty":  # without faults it must be like any other
        return Faults(Plan()).around(f"memory://run-{number}")
    if request.param == "obstore":
        pytest.importorskip("obstore")
        return f"s3://runs/folder/run-{number}", {**request.getfixturevalue("rgw").options, "client": "obstore"}
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


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No process, no mapping of an arena and no thread of a save is left."""
    yield
    gc.collect()
    left = [one.pid for one in psutil.Process().children() if WRITER_MODULE in " ".join(command_of(one))]
    assert left == []
    assert "checkpoint-arena" not in Path("/proc/self/maps").read_text()
    assert [one.name for one in threading.enumerate() if one.name.startswith("checkpoint-")] == []


@pytest.fixture
def trainer() -> Iterator[Callable[..., Trainer]]:
    started: list[Trainer] = []

    def start(*arguments: Any) -> Trainer:
        started.append(Trainer(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()

"""The newest checkpoint is read while a node's processes start: the same run, fewer reads, and nothing left of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from elastic.drill.machine import processes
from elastic.drill.machine.leftovers import SHARED_MEMORY
from elastic.events.reading import read_events
from elastic.launch.read_ahead import known_url
from elastic_checkpoint import Checkpointer, Commit
from tests.kit.launch import POLL_S, Launch
from tests.kit.programs.resumed import AHEAD, copy
from tests.kit.relay import Relay
from tests.kit.s3 import S3Server, s3_server

WITHIN_S = 240.0
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "resumed.py"

_number = count()


class Counting(Relay):
    """Between `elastic run` and an S3 server. gets: how often each object was asked for"""

    def __init__(self, server: S3Server) -> None:
        self.gets: Counter[str] = Counter()
        super().__init__(int(server.endpoint_url.rpartition(":")[2]))

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def data(self, url: str) -> Counter[str]:
        """Of the run's data objects: what was noted beside them, nobody reads ahead."""
        folder = f"{url.removeprefix('s3:/')}/data/"
        return Counter(
            {
                key: number
                for key, number in self.gets.items()
                if key.startswith(folder) and key.endswith(".safetensors")
            }
        )

    def passes(self, data: bytes, *, up: bool) -> None:
        if up:
            self.gets.update(key.decode() for key in re.findall(rb"^GET (/[^? ]+)", data, re.MULTILINE))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        server.new_bucket("runs")
        yield server


@pytest.fixture
def relay(s3: S3Server) -> Iterator[Counting]:
    made = Counting(s3)
    with contextlib.closing(made):
        yield made


@pytest.fixture
def url() -> str:
    return f"s3://runs/resumed-{next(_number)}"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir(SHARED_MEMORY))
    yield
    named = {name for name in set(os.listdir(SHARED_MEMORY)) - before if "checkpoint" in name or "ahead" in name}
    assert named == set()


def environment(endpoint_url: str, s3: S3Server) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": endpoint_url, "AWS_ACCESS_KEY_ID": s3.key, "AWS_SECRET_ACCESS_KEY": s3.secret}


def started(*flags: str, script: tuple[object, ...], env: dict[str, str], workers: int = 2) -> Launch:
    return Launch("elastic", ["run", f"--nproc-per-node={workers}", *flags, SCRIPT, *script], env=env)


def result(launch: Launch) -> str:
    """Where it ended, and with which weights."""
    with launch:
        return said(launch)


def said(launch: Launch) -> str:
    output = launch.succeed(within_s=WITHIN_S)
    assert_none_left(launch)
    (found,) = re.findall(r"^at step .*$", output, re.MULTILINE)
    return str(found)


def assert_none_left(launch: Launch) -> None:
    deadline_s = time.monotonic() + 60
    while (left := launch.pids) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    assert left == [], [processes.describe(pid) for pid in left]


def newest(url: str, s3: S3Server) -> Commit:
    with Checkpointer(url, storage_options=s3.options) as runs:
        found = runs.latest()
    assert found is not None
    return found


def read_ahead_bytes(url: str, s3: S3Server) -> list[int]:
    """Of each time that a state was loaded of which some had been."""
    events = read_events(url, storage_options=s3.options)
    return [event["read_ahead_bytes"] for event in events if "read_ahead_bytes" in event]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The result of 8 steps that nothing interrupts."""
    return result(started(script=(tmp_path_factory.mktemp("alone") / "run", "--steps=8"), env={}))


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_a_resume_takes_what_was_read_ahead_and_has_the_same_bits(
    s3: S3Server, relay: Counting, url: str, undisturbed: str
) -> None:
    env = environment(relay.endpoint_url, s3)
    result(started(script=(url, "--steps=4"), env=env))
    saved = newest(url, s3)
    relay.gets.clear()
    resume = started(f"--rdzv-endpoint={url}", "--timing", script=(url, "--steps=8", "--awaits=its-end-first"), env=env)
    with resume:
        assert said(resume) == undisturbed
        assert f"they hold the state, of which {saved.bytes / 1e6:,.1f} MB had been read ahead" in resume.output
    assert set(relay.data(url).values()) == {1}  # by the child
    assert len(relay.data(url)) == saved.objects
    assert read_ahead_bytes(url, s3) == [saved.bytes]


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_fresh_interpreters_take_it_too(s3: S3Server, url: str, undisturbed: str) -> None:
    """Which inherit it as they inherit their channel."""
    env = {**environment(s3.endpoint_url, s3), "ELASTIC_URL": url}
    result(started(script=(url, "--steps=4"), env=env))
    size = newest(url, s3).bytes
    script = (url, "--steps=8", "--awaits=its-end-first")
    assert result(started("--start-method=spawn", script=script, env=env)) == undisturbed
    assert read_ahead_bytes(url, s3) == [size]


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_a_checkpoint_that_comes_after_the_reading_is_the_one_that_is_loaded(
    s3: S3Server, relay: Counting, url: str, undisturbed: str
) -> None:
    env = environment(relay.endpoint_url, s3)
    result(started(script=(url, "--steps=4"), env=env))
    copy(url, f"{url}-newer", **s3.options)
    result(started(script=(f"{url}-newer", "--steps=6"), env=env))
    relay.gets.clear()
    script = (url, "--steps=8", "--awaits=its-end-first", f"--copies={url}-newer")
    assert result(started(f"--rdzv-endpoint={url}", script=script, env=env)) == undisturbed
    events = read_events(url, storage_options=s3.options)
    assert [event["step"] for event in events if event["event"] == "loaded" and event["rank"] == 0] == [0, 4, 6]
    assert read_ahead_bytes(url, s3) == []
    assert len({key.split("/")[-2] for key in relay.data(url)}) == 2  # what was read ahead, and what was loaded


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_a_folder_is_read_and_nothing_of_it_is_kept(tmp_path: Path, undisturbed: str) -> None:
    result(started(script=(tmp_path / "run", "--steps=4"), env={}))
    script = (tmp_path / "run", "--steps=8", "--awaits=its-end-first")
    assert result(started(f"--rdzv-endpoint={tmp_path}/run", script=script, env={})) == undisturbed
    assert [event for event in read_events(tmp_path / "run") if "read_ahead_bytes" in event] == []


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_of_several_nodes_the_one_with_the_hub_reads(s3: S3Server, relay: Counting, url: str) -> None:
    env = environment(relay.endpoint_url, s3)
    result(started(script=(url, "--steps=4"), env=env))
    saved = newest(url, s3)
    relay.gets.clear()
    meet = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={url}", "--rdzv-id=two"]
    script = (url, "--steps=6", "--awaits=its-end-first")
    with (
        started(*meet, script=script, env=env, workers=1) as one,
        started(*meet, script=script, env=env, workers=1) as two,
    ):
        for node in (one, two):
            node.succeed(within_s=WITHIN_S)
    assert set(relay.data(url).values()) == {1}
    assert read_ahead_bytes(url, s3) == [saved.bytes]


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of a storage that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_a_storage_that_hangs_holds_up_nobody(s3: S3Server, hanging: str, tmp_path: Path) -> None:
    """Here another one than the run's."""
    env = {**environment(hanging, s3), "ELASTIC_URL": "s3://runs/hangs"}
    assert result(started(script=(tmp_path / "run", "--awaits=its-end-later"), env=env)).startswith("at step 4")


@pytest.mark.nightly(sample=2, of="what is read ahead")
def test_it_ends_with_an_agent_that_is_killed(s3: S3Server, hanging: str, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(600)\n")
    env = {**environment(hanging, s3), "ELASTIC_URL": "s3://runs/hangs"}
    with Launch("elastic", ["run", script], env=env) as launch:

        def names() -> list[str]:
            found = []
            for pid in launch.pids:
                with contextlib.suppress(FileNotFoundError):
                    found.append(Path(f"/proc/{pid}/comm").read_text().strip())
            return found

        launch.wait_for(lambda: {AHEAD, "elastic-worker"} <= set(names()), "all are there", within_s=WITHIN_S)
        launch.send(signal.SIGKILL)
        launch.finish(within_s=WITHIN_S)
        assert_none_left(launch)


@pytest.mark.parametrize(
    ("endpoint", "variable", "url"),
    [
        ("", "", None),
        ("host:29400", "", None),
        ("s3://a/b", "s3://c/d", "s3://a/b"),
        ("host1,host2:1,/folder", "", "/folder"),
        ("host1", "s3://c/d", "s3://c/d"),
        ("s3://a,s3://b", "", None),
    ],
)
def test_whose_url_is_known(endpoint: str, variable: str, url: str | None) -> None:
    assert known_url(endpoint, {"ELASTIC_URL": variable} if variable else {}) == url

"""The storage goes in the middle of a run: a full disk, a folder that is read-only, a bucket that is deleted.

What comes back is waited for, and the run is the undisturbed one. What does not ends it with SavesFailed and a rescue
copy, from which the same script goes on; what was committed before is whole, and the same command goes on from it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import s3fs

from elastic.drill.machine import disk
from elastic.errors import ConfigError
from elastic_checkpoint import Checkpointer, digest
from tests.kit.launch import Launch
from tests.kit.s3 import S3Server

pytestmark = pytest.mark.nightly(sample=3, of="counts")

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STEPS = 120
WITHIN_S = 240.0


@dataclass
class Storage:
    """Where a run lies, how its storage goes, and how it is there again."""

    url: str
    options: dict[str, Any]
    goes: Callable[[], None]
    comes_back: Callable[[], None]

    def newest(self) -> int:
        """The step of its newest checkpoint."""
        with self._opened() as runs:
            latest = runs.latest()
            return latest.step if latest else 0

    def whole(self) -> bool:
        """Whether all checkpoints are. For when nothing is saved, and so nothing swept."""
        with self._opened() as runs:
            return len(found := runs.verify()) > 0 and all(one.ok for one in found)

    def _opened(self) -> Checkpointer:
        return Checkpointer(self.url, storage_options=self.options or None, log=lambda line: None)


@pytest.fixture(params=[disk.FULL, "read-only"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    folder, like = tmp_path / "disk", tmp_path / "like"
    like.mkdir()
    try:
        disk.check()
        disk.mount(folder, like=like)
    except ConfigError as cannot:
        pytest.skip(f"needs a machine where this user may mount a tmpfs: {cannot}")
    yield Storage(str(folder / "run"), {}, lambda: disk.strike(folder, request.param), lambda: disk.heal(folder))
    disk.heal(folder)
    disk.unmount(folder)


@pytest.fixture
def bucket(rgw: S3Server) -> Storage:
    filesystem = s3fs.S3FileSystem(**rgw.options, use_listings_cache=False)
    name = f"goes-{secrets.token_hex(4)}"
    filesystem.mkdir(name)

    def goes() -> None:
        """Whoever deletes a bucket must empty it; a run that saves meanwhile is met again."""
        deadline = time.monotonic() + WITHIN_S
        while filesystem.exists(name):
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):
                filesystem.rm(name, recursive=True)  # and the bucket, which is empty then, or is not yet

    return Storage(f"s3://{name}/run", rgw.options, goes, lambda: filesystem.mkdir(name))


Start = Callable[..., Launch]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(url, options, *flags): the run there, by two workers."""
    with contextlib.ExitStack() as stack:

        def started(url: str, options: dict[str, Any], *flags: object) -> Launch:
            of_run = [PROGRAM, url, f"--steps={STEPS}", "--save-every=2", *flags]
            of_run += [f"--storage={json.dumps(options)}"] if options else []
            env = {"ELASTIC_RESCUE": str(tmp_path / "rescued")}
            return stack.enter_context(
                Launch("elastic", ["run", "--standalone", "--nproc-per-node=2", *of_run], env=env)
            )

        yield started


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = tmp_path_factory.mktemp("undisturbed") / "run"
    with Launch("tests.kit.programs.small", [url, f"--steps={STEPS}"]) as alone:
        alone.succeed(within_s=WITHIN_S)
    return weights(url)


def weights(url: str | Path, options: dict[str, Any] | None = None) -> str:
    """Of the run's end."""
    with Checkpointer(url, storage_options=options) as runs:
        found = runs.read()
    assert found.step == STEPS
    return digest(found.tree["model"])


def test_a_disk_that_takes_nothing_for_a_while_costs_no_step(
    small_disk: Storage, start: Start, undisturbed: str, tmp_path: Path
) -> None:
    storage, hurry = small_disk, tmp_path / "hurry"
    run = start(storage.url, storage.options, f"--slow-until={hurry}", "--save-failures-max=1000")
    run.wait_for(lambda: "step 5 loss" in run.output, "step 5", within_s=WITHIN_S)
    storage.goes()
    run.wait_for(lambda: run.output.count("could not be saved") > 2, "saves that fail", within_s=WITHIN_S)
    before = storage.newest()
    assert storage.whole()
    assert ("free some space" in run.output) or ("mounted read-only" in run.output)
    storage.comes_back()
    run.wait_for(lambda: storage.newest() > before, "a save that is made", within_s=WITHIN_S)
    hurry.touch()
    run.succeed(within_s=WITHIN_S)
    assert "SavesFailed" not in run.output
    assert weights(storage.url) == undisturbed


def test_a_disk_that_takes_nothing_any_more_ends_the_run_with_a_copy_and_both_go_on(
    small_disk: Storage, start: Start, undisturbed: str, tmp_path: Path
) -> None:
    storage = small_disk
    run = start(storage.url, storage.options, f"--slow-until={tmp_path / 'hurry'}", "--save-failures-max=3")
    run.wait_for(lambda: storage.newest() > 0, "a save, which is made beside the steps", within_s=WITHIN_S)
    storage.goes()
    run.wait_for(lambda: "could not be saved" in run.output, "a save that fails", within_s=WITHIN_S)
    before = storage.newest()
    assert run.finish(within_s=WITHIN_S) == 1, run.output
    assert storage.newest() == before > 0
    assert storage.whole()
    copy = rescued(run, tmp_path)
    start(str(copy), {}).succeed(within_s=WITHIN_S)
    assert weights(copy) == undisturbed
    storage.comes_back()
    again = start(storage.url, storage.options).succeed(within_s=WITHIN_S)
    assert f"resuming after step {before} of {STEPS}" in again
    assert weights(storage.url) == undisturbed


@pytest.mark.parametrize("comes_back", [False, True], ids=["for good", "empty"])
def test_a_bucket_that_is_deleted_ends_the_run_with_a_copy_that_goes_on(
    bucket: Storage, start: Start, undisturbed: str, tmp_path: Path, comes_back: bool
) -> None:
    """One that is made anew is empty: what was committed is not there, and nothing is added to a run of which only the
    end would be."""
    run = start(bucket.url, bucket.options, f"--slow-until={tmp_path / 'hurry'}", "--save-failures-max=3")
    run.wait_for(lambda: bucket.newest() > 0, "a save, which is made beside the steps", within_s=WITHIN_S)
    bucket.goes()
    if comes_back:
        bucket.comes_back()
    assert run.finish(within_s=WITHIN_S) == 1, run.output
    if not comes_back:
        assert "NoSuchBucket" in run.output or "does not exist" in run.output, run.output
        bucket.comes_back()
    copy = rescued(run, tmp_path)
    start(str(copy), {}).succeed(within_s=WITHIN_S)
    assert weights(copy) == undisturbed
    start(bucket.url, bucket.options).succeed(within_s=WITHIN_S)
    assert weights(bucket.url, bucket.options) == undisturbed, "the same command begins anew there"


def rescued(run: Launch, tmp_path: Path) -> Path:
    """The copy that an ended run has left; its end says where, and that it is SavesFailed."""
    assert "SavesFailed" in run.output, run.output
    (copy,) = (tmp_path / "rescued").iterdir()
    assert f"rescue   {copy}" in run.output
    return copy

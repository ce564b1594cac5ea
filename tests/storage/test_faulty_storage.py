"""Saves, loads and sweeps on a storage that fails: at each operation in turn, in each way, and at random.

Whatever the storage did, the newest checkpoint that is whole loads with the right bytes, and the next save works.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from elastic_checkpoint import Checkpointer, CheckpointError, NoCheckpoint, StorageError, digest
from elastic_checkpoint.storage import Scrubber
from elastic_checkpoint.storage.fsspec import FsspecStorage
from elastic_checkpoint.storage.retry import RetryingStorage
from elastic_checkpoint.testing import Cut, Error, Faults, Hang, Plan, PowerCut, ShortRead, StaleList, TornWrite
from elastic_checkpoint.testing.fault_plan import Rule

Make = Callable[..., Checkpointer]

MENDABLE: dict[str, Callable[[int], Rule]] = {
    "an error that passes": lambda n: Error("reset", after=n, times=1),
    "three errors that pass": lambda n: Error("slow_down", after=n, times=3),
    "a lost answer": lambda n: Error("timeout", after=n, times=1, late=True),
    "a write torn in half": lambda n: TornWrite(after=n, times=1),
    "a stale listing": lambda n: StaleList(after=n, times=1),
    "a hang": lambda n: Hang(0.001, after=n, times=1),
}
OTHER: dict[str, Callable[[int], Rule]] = {
    "an error that stays": lambda n: Error("forbidden", after=n),
    "an error that stays, after the work was done": lambda n: Error("full", after=n, late=True),
    "a write torn in half that is called a success": lambda n: TornWrite(after=n, times=1, silent=True),
    "a short read": lambda n: ShortRead(after=n, times=1),
    "stale listings from here on": lambda n: StaleList(after=n),
    "a power cut": lambda n: Cut(after=n),
    "a power cut just after": lambda n: Cut(after=n, late=True),
}


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {"w": torch.randn(40, 3, generator=generator), "b": torch.randn(5, generator=generator)},
        "at": seed,
    }


DIGESTS = {step: digest(state(step)) for step in range(40)}


def on(url: str, options: dict[str, Any]) -> RetryingStorage:
    """What `open_storage` makes, but for the waiting between attempts."""
    return RetryingStorage(FsspecStorage(url, options), retry_s=60, scrub=Scrubber(url, options), sleep=lambda _: None)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Gives URLs in memory whose objects go when the test ends."""
    root = f"memory:/{tmp_path}"
    yield lambda name: f"{root}/{name}"
    filesystem = fsspec.filesystem("memory")
    for name in filesystem.find(str(tmp_path)):
        filesystem.rm_file(name)


def prepared(make: Make, url: str) -> Callable[[str], None]:
    """Makes three checkpoints at `url`, and returns what copies them to another one."""
    with make(url, keep=3) as first:
        for step in (1, 2, 3):
            first.save(step, state(step))
    filesystem, root = fsspec.url_to_fs(url)
    objects = {name[len(root) :]: filesystem.cat_file(name) for name in filesystem.find(root)}

    def copy(to: str) -> None:
        path = fsspec.url_to_fs(to)[1]
        filesystem.pipe({path + name: data for name, data in objects.items()})

    return copy


@pytest.mark.nightly(sample=4)
@pytest.mark.parametrize("how", [*MENDABLE, *OTHER])
def test_whatever_goes_wrong_at_any_operation_of_a_claim_a_save_and_a_sweep(
    memory: Callable[[str], str], checkpointer: Make, how: str
) -> None:
    """A fault at each operation in turn: the old checkpoint or the new one is the newest, with its own bytes."""
    copy = prepared(checkpointer, memory("prepared"))
    newest, ends = Counter[int](), Counter[str]()
    for number in itertools.count():
        url = memory(str(number))
        copy(url)
        faults = Faults(Plan({**MENDABLE, **OTHER}[how](number)))
        # what is mended takes its time under load; what is not is given up soon
        retry_s = 60.0 if how in MENDABLE else 0.1
        options: dict[str, Any] = {"keep": 2, "shard_bytes": 200, "take_over": True, "retry_s": retry_s}
        failing = checkpointer(on(*faults.around(url)), **options)
        try:
            failing.save(4, state(4))
            end = "committed"
        except (CheckpointError, PowerCut) as error:
            end = type(error).__name__
        if not faults.happened:
            break

        reader = checkpointer(url)
        found = reader.read()
        assert digest(found.tree) == DIGESTS[found.step], faults.report()
        assert found.step == 4 or (found.step == 3 and end != "committed"), faults.report()
        assert sum(one.ok for one in reader.verify()) >= 2, faults.report()
        assert end == "committed" or how not in MENDABLE, faults.report()
        newest[found.step] += 1
        ends[end] += 1

        again = checkpointer(url, take_over=True)
        again.save(5, state(5))
        assert again.read().step == 5
    assert number > 6
    assert newest[4] > 0
    assert (newest[3] > 0) == (how in OTHER and how != "a short read"), ends  # which is read again


HONEST = (
    Error("reset", chance=0.04),
    Error("slow_down", chance=0.04),
    Error("timeout", chance=0.04, late=True),
    Error("io", on="write", chance=0.03),
    TornWrite(path="*/data/*", chance=0.05),
    Error("full", on="write", chance=0.01),
    Error("forbidden", chance=0.002),
)
LYING = (*HONEST, TornWrite(chance=0.03, silent=True), ShortRead(chance=0.03), StaleList(chance=0.03))


@pytest.mark.nightly(sample=3)
@pytest.mark.parametrize("rules", [HONEST, LYING], ids=["honest", "lying"])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_on_a_bad_storage_always_has_its_newest_whole_checkpoint(
    memory: Callable[[str], str], checkpointer: Make, seed: int, rules: tuple[Rule, ...]
) -> None:
    """Thirty saves with their sweeps, a restart after each that failed. A storage that says "done" when it is not, or
    shows what was, may cost the newest checkpoint, but no load ever brings wrong bytes."""
    faults = Faults(Plan(*rules, seed=seed))
    url, reported = memory("run"), 0
    failing: Checkpointer | None = None
    for step in range(1, 31):
        try:
            failing = failing or checkpointer(on(*faults.around(url)), keep=2, shard_bytes=200, take_over=True)
            failing.save(step, state(step))
            reported = step
        except CheckpointError:
            failing = None
        for location in (on(url, {}), on(*faults.around(url))):
            try:
                found = checkpointer(location).read()
                assert digest(found.tree) == DIGESTS[found.step], faults.report()
                assert found.step >= reported or rules is LYING, faults.report()
            except NoCheckpoint:
                assert reported == 0 or rules is LYING, faults.report()
            except CheckpointError:
                assert location._inner._options, faults.report()  # type: ignore[attr-defined]  # a sound storage raises none
    kinds = {type(one.rule).__name__ for one in faults.happened}
    assert kinds >= {type(rule).__name__ for rule in rules}, faults.report()

    faults.heal()
    last = checkpointer(url, take_over=True)
    last.save(31, state(31))
    assert last.read().step == 31
    assert reported > 10, faults.report()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_manifest_that_was_taken_and_is_not_there_is_no_commit_and_counts_for_nothing(
    tmp_path: Path, checkpointer: Make, blocking: bool
) -> None:
    """The upload was cut short, and the storage said "done"."""
    plan = Plan(TornWrite(path="*/commits/*", after=2, times=1, silent=True))
    target = {"target_protocol": "file", "target_options": {"auto_mkdir": True}, "faults": plan.document()}
    runs = checkpointer(f"faulty://{tmp_path}", storage_options=target, keep=2, when_busy="wait", log=lambda line: None)

    def save(step: int) -> int:
        saved: Any = runs.save(step, state(step), blocking=blocking)
        return int(saved.step if blocking else saved.wait().step)

    assert [save(1), save(2)] == [1, 2]
    with pytest.raises(StorageError, match="says done when it is not"):
        save(3)
    assert checkpointer(tmp_path).read().step == 2
    assert save(4) == 4
    runs.close()
    assert [one.step for one in checkpointer(tmp_path).verify() if one.ok] == [4, 2]
    assert len(list((tmp_path / "commits").iterdir())) == 3  # that of step 3, too, which does not count as kept


def test_a_manifest_that_cannot_be_read_back_may_be_committed_and_the_error_says_so(
    memory: Callable[[str], str], checkpointer: Make
) -> None:
    faults = Faults(Plan(Error("forbidden", on="read", path="*/commits/*")))
    url = memory("run")
    with pytest.raises(StorageError, match="this checkpoint may be committed: the next load finds out"):
        checkpointer(on(*faults.around(url))).save(1, state(1))
    assert checkpointer(url).read().step == 1


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("seed", range(3))
def test_the_writer_process_stands_a_bad_storage_too(tmp_path: Path, checkpointer: Make, seed: int) -> None:
    """It opens the storage for itself, so that it carries out the same plan with counts of its own."""
    rules = Error("reset", chance=0.06), Error("timeout", chance=0.06, late=True), TornWrite(chance=0.02)
    plan = Plan(*rules, seed=seed)
    target = {"target_protocol": "file", "target_options": {"auto_mkdir": True}, "faults": plan.document()}
    lines: list[str] = []
    runs = checkpointer(f"faulty://{tmp_path}", storage_options=target, keep=2, shard_bytes=200, log=lines.append)
    ends = []
    for step in range(1, 9):
        saving = runs.save(step, state(step), blocking=False)
        ends.append((step, saving))
    committed = 0
    for step, saving in ends:
        try:
            committed = max(committed, saving.wait().step)
        except CheckpointError:
            assert any(f"step {step} could not be saved" in line for line in lines)
    runs.close()
    assert not any("no saving in the background" in line for line in lines), lines

    found = checkpointer(tmp_path).read()
    assert found.step >= committed > 0, lines
    assert digest(found.tree) == DIGESTS[found.step]


def test_the_first_save_of_a_run_is_made_again_where_its_manifest_was_torn(
    memory: Callable[[str], str], checkpointer: Make
) -> None:
    """There is none before it to go back to: the run could never start. (Random drill 205.)"""
    faults = Faults(Plan(TornWrite(path="*/commits/*", times=1)))
    said: list[str] = []
    saved = checkpointer(on(*faults.around(memory("torn"))), log=said.append)
    name = saved.save(0, state(7)).name
    assert "is saved again" in "\n".join(said)

    found = checkpointer(memory("torn"), log=said.append).read()
    assert (found.step, found.commit.name, digest(found.tree)) == (0, name, DIGESTS[7])

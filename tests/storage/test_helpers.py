"""Processes that hold the same bytes store a save together: whoever does not help, or wrongly, costs no more than that.

Rank 0 commits, and its storage is slow; the others help, each with faults of its own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, Helper, SaveDropped, StorageError, digest
from elastic_checkpoint.net.framing import NotAMessage
from elastic_checkpoint.runs.history import read_manifest
from elastic_checkpoint.storage import open_storage
from elastic_checkpoint.testing import Delay, Error, Hang, Plan, TornWrite
from tests.kit.ranks import Died, returned, run_ranks
from tests.kit.s3 import S3Server
from tests.storage.beside import writers
from tests.storage.together import own_writer, writers_left

WITHIN_S = 120.0
OBJECTS = 24
SHARD_BYTES = 20_000
DATA = "*/data/*"
SLOW = Delay(2.0, on="write", path=DATA)
LONG_S = 600.0


def state(odd: int | None = None) -> dict[str, Any]:
    """An object for each tensor. odd: the one that is another than elsewhere"""
    tensors = [torch.full((SHARD_BYTES // 4,), float(number)) for number in range(OBJECTS)]
    if odd is not None:
        tensors[odd][7] += 1
    return {"w": tensors, "rank": odd}


def location(folder: str, plan: Plan | None) -> tuple[str, dict[str, Any]]:
    url = f"{folder}/run"
    if plan is None:
        return url, {}
    target = {"target_protocol": "file", "target_options": {"auto_mkdir": True}}
    record = f"{folder}/faults-{os.getpid()}"
    return f"faulty://{url}", {**target, "faults": plan.document(), "record": record}


def until(path: Path) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"no {path.name}"
        time.sleep(0.01)


def commits(folder: str, helpers: int, plan: Plan | None, saves: int = 1) -> tuple[dict[int, int], str]:
    """As rank 0."""
    url, options = location(folder, plan)
    helped: dict[int, int] = {}
    with Checkpointer(url, storage_options=options, shard_bytes=SHARD_BYTES, log=lambda line: None) as runs:
        runs.warm(state())
        invitation = runs.invite(range(1, helpers + 1))
        assert invitation is not None
        Path(folder, "writing").write_text(json.dumps(invitation))
        Path(folder, "writing").rename(Path(folder, "invitation"))
        own_writer(folder)
        for number in range(1, helpers + 1):
            until(Path(folder, f"ready-{number}"))
        for step in range(1, saves + 1):
            saving = runs.save(step, state(), blocking=False)
            left_s: list[float] = []
            while not saving.done:
                left_s += [] if saving.likely_left_s is None else [saving.likely_left_s]
                time.sleep(0.01)
            assert saving.wait(WITHIN_S).objects == OBJECTS
            assert left_s
            assert saving.likely_left_s is None
            helped = saving.helped
        Path(folder, "saved").touch()
    with Checkpointer(f"{folder}/run") as runs:
        assert all(one.ok for one in runs.verify())
        return helped, digest(runs.read(step=saves).tree)


def helps(folder: str, number: int, plan: Plan | None, odd: int | None, die: bool) -> None:
    until(Path(folder, "invitation"))
    invitation = json.loads(Path(folder, "invitation").read_text())
    url, options = location(folder, plan)
    helper = Helper(url, options, invitation, number, state(odd), log=print)
    Path(folder, f"ready-{number}").touch()
    if die:  # in the midst of it
        until(Path(options["record"]))
        os.kill(os.getpid(), signal.SIGKILL)
    until(Path(folder, "saved"))
    helper.close(0 if plan else 30)


def together(
    rank: int, size: int, folder: str, plans: list[Plan | None], odd: int | None, die: int | None, saves: int = 1
) -> tuple[dict[int, int], str] | None:
    if rank == 0:
        return commits(folder, size - 1, plans[0], saves)
    helps(folder, rank, plans[rank], odd if rank == 1 else None, die=die == rank)
    return None


EXPECTED = digest(state())


def saved_by(answer: Any) -> dict[int, int]:
    """How many objects each helper stored of a save that is whole."""
    helped, found = answer
    assert found == EXPECTED
    return {who: size // SHARD_BYTES for who, size in helped.items()}


def test_all_store_parts_of_a_save(tmp_path: Path) -> None:
    first, *_ = returned(run_ranks(together, 3, str(tmp_path), [Plan(SLOW), None, None], None, None))
    helped = saved_by(first)
    assert helped.keys() == {1, 2}
    assert 8 <= sum(helped.values()) < OBJECTS
    assert writers_left(tmp_path) == []


def test_of_another_save_likewise(tmp_path: Path) -> None:
    first, _ = returned(run_ranks(together, 2, str(tmp_path), [Plan(SLOW), None], None, None, 2))
    assert saved_by(first)[1] >= OBJECTS // 3


@pytest.mark.nightly(sample=3, of="helpers that fail")
def test_a_helper_that_is_killed_in_the_midst_of_it_costs_no_commit(tmp_path: Path) -> None:
    plans = [Plan(SLOW), Plan(Delay(LONG_S, on="write", path=DATA)), None]
    first, dead, _ = run_ranks(together, 3, str(tmp_path), plans, None, 1)
    assert dead == Died(-signal.SIGKILL)
    assert saved_by(first).keys() == {2}


@pytest.mark.nightly(sample=3, of="helpers that fail")
@pytest.mark.parametrize("hangs", [Hang(LONG_S, on="write", path=DATA), Hang(LONG_S, on="read", path="*/claims/*")])
def test_a_helper_that_hangs_is_not_waited_for(hangs: Hang, tmp_path: Path) -> None:
    first, *_ = returned(run_ranks(together, 3, str(tmp_path), [Plan(SLOW), Plan(hangs), None], None, None))
    assert saved_by(first).keys() == {2}


@pytest.mark.nightly(sample=3, of="helpers that fail")
def test_a_helper_stores_no_other_bytes(tmp_path: Path) -> None:
    """Of one object; the others are as they should be, although a plain value differs, too."""
    odd = OBJECTS - 2
    first, _ = returned(run_ranks(together, 2, str(tmp_path), [Plan(SLOW), None], odd, None))
    assert 0 < saved_by(first)[1] < OBJECTS
    with Checkpointer(tmp_path / "run") as runs:
        assert runs.read().tree["rank"] is None


@pytest.mark.nightly(sample=3, of="helpers that fail")
def test_what_a_helper_has_stored_in_part_is_stored_again(tmp_path: Path) -> None:
    """It was told of success."""
    torn = Plan(TornWrite(path="*/000*[13579]-1.safetensors", silent=True))
    first, _ = returned(run_ranks(together, 2, str(tmp_path), [Plan(SLOW), torn], None, None))
    assert 0 < saved_by(first)[1] < OBJECTS
    with Checkpointer(tmp_path / "run") as runs:
        manifest = read_manifest(open_storage(tmp_path / "run"), runs.list()[0].id)
    by = [stored.helper for stored in manifest.objects]
    assert not any(by[1::2])
    assert sum(by) == saved_by(first)[1]


def test_what_helpers_stored_is_swept_with_the_rest(tmp_path: Path) -> None:
    """And what more than one has stored: of all that lies there after the last save, a manifest names each, or it is
    the last one's."""
    folder = str(tmp_path)
    first, _ = returned(run_ranks(together, 2, folder, [Plan(SLOW), None], None, None, 3))
    assert saved_by(first)[1]
    url, options = location(folder, Plan())
    with Checkpointer(url, storage_options=options, keep=2) as runs:
        runs.save(9, state())
        kept = {commit.id.data_folder for commit in runs.list()}
    assert len(kept) == 2
    assert {str(path.parent.relative_to(tmp_path / "run")) for path in tmp_path.glob("run/data/*/*/*")} == kept


@pytest.mark.nightly(sample=3, of="helpers that fail")
def test_what_a_helper_cannot_store_is_stored_by_who_commits(tmp_path: Path) -> None:
    full = Plan(Error("full", on="write", path=DATA))
    first, _ = returned(run_ranks(together, 2, str(tmp_path), [Plan(SLOW), full], None, None))
    assert saved_by(first) == {}


def killed(rank: int, size: int, folder: str) -> None:
    """Rank 0, once the state is staged."""
    if rank:
        until(Path(folder, "invitation"))
        invitation = json.loads(Path(folder, "invitation").read_text())
        helper = Helper(f"{folder}/run", {}, invitation, rank, state(), log=print)
        Path(folder, "ready-1").touch()
        until(Path(folder, "run", "commits"))
        helper.close(30)
        return
    url, options = location(folder, Plan(SLOW))
    runs = Checkpointer(url, storage_options=options, shard_bytes=SHARD_BYTES)
    runs.warm(state())
    Path(folder, "writing").write_text(json.dumps(runs.invite([1])))
    Path(folder, "writing").rename(Path(folder, "invitation"))
    own_writer(folder)
    until(Path(folder, "ready-1"))
    runs.save(1, state(), blocking=False)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.nightly(sample=3, of="helpers that fail")
def test_what_is_staged_is_committed_though_who_commits_is_killed(tmp_path: Path) -> None:
    dead, helper = run_ranks(killed, 2, str(tmp_path))
    assert dead == Died(-signal.SIGKILL)
    assert returned([helper]) == [None]
    assert writers_left(tmp_path) == []
    with Checkpointer(tmp_path / "run") as runs:
        assert all(one.ok for one in runs.verify())
        assert digest(runs.read().tree) == EXPECTED


def test_a_save_fails_of_what_it_fails_of_alone(tmp_path: Path) -> None:
    url, options = location(str(tmp_path), Plan(Error("full", on="write", path=DATA)))
    with Checkpointer(url, storage_options=options, shard_bytes=SHARD_BYTES, log=lambda line: None) as runs:
        runs.warm(state())
        assert runs.invite([1]) is not None
        with pytest.raises(StorageError, match="No space left"):
            runs.save(1, state(), blocking=False).wait(WITHIN_S)
        assert runs.list() == []


def test_a_storage_that_is_not_shared_is_not_written_to(tmp_path: Path, nothing_is_left: None) -> None:
    said: list[str] = []
    with Checkpointer(tmp_path / "here", shard_bytes=SHARD_BYTES) as runs:
        runs.warm(state())
        invitation = runs.invite([1])
        assert invitation is not None
        helper = Helper(tmp_path / "elsewhere", None, invitation, 1, state(), log=said.append)
        helper.close(WITHIN_S)
        runs.save(1, state(), blocking=False).wait(WITHIN_S)
    assert len(said) == 1
    assert "is not shared" in said[0]
    assert not (tmp_path / "elsewhere").exists()


def test_without_warm_and_for_one_object_nobody_is_invited(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "run") as runs:
        assert runs.invite([1]) is None
        runs.warm(state())
        assert runs.invite([1]) is None
        assert runs.save(1, state()).objects == 1


def test_without_warm_what_it_makes_is_made_with_the_invitation(tmp_path: Path, nothing_is_left: None) -> None:
    with Checkpointer(tmp_path / "one") as runs:
        assert runs.invite([1], state=state()) is None
        assert writers() == [], "one object is nothing to share"
    with Checkpointer(tmp_path / "run", shard_bytes=SHARD_BYTES) as runs:
        assert runs.invite([1], state=state()) is not None
        assert runs.save(1, state(), blocking=False).wait(WITHIN_S).step == 1


@pytest.mark.parametrize("hanging", ["*", "*1.*"], ids=["all objects", "some"])
def test_saves_that_are_given_up_leave_the_next_one_the_storage(
    tmp_path: Path, nothing_is_left: None, hanging: str
) -> None:
    """One hangs, and one waits behind it. Whoever is invited afterwards helps with what comes next."""
    url, options = location(str(tmp_path), Plan(Hang(LONG_S, on="write", path=f"*/s000000001-*/{hanging}")))
    said: list[str] = []
    with Checkpointer(url, storage_options=options, shard_bytes=SHARD_BYTES, log=said.append) as runs:
        runs.give_up_saves()
        first, waiting = (runs.save(step, state(), blocking=False) for step in (1, 2))
        runs.give_up_saves()
        for one in (first, waiting):
            with pytest.raises(SaveDropped, match="given up"):
                one.wait(WITHIN_S)
        assert runs.invite([1], state=state()) is not None
        assert runs.save(3, state(), blocking=False).wait(WITHIN_S).step == 3
        runs.give_up_saves()
        assert [commit.step for commit in runs.list()] == [3]
        assert all(one.ok for one in runs.verify())
    assert said == []


def test_what_is_no_invitation_is_refused(tmp_path: Path) -> None:
    for wrong in ({}, {"endpoint": {}, "claim": {}, "shard_bytes": 0}, {"endpoint": 3, "claim": {}, "shard_bytes": 5}):
        with pytest.raises(NotAMessage):
            Helper(tmp_path, None, wrong, 1, state(), log=print)


def test_on_s3(s3: S3Server) -> None:
    """In threads of one process."""
    url = "s3://runs/helped"
    with Checkpointer(url, storage_options=s3.options, shard_bytes=SHARD_BYTES) as runs:
        runs.warm(state())
        invitation = runs.invite([1])
        assert invitation is not None
        said: list[str] = []
        helper = Helper(url, s3.options, invitation, 1, state(), log=said.append)
        helped: dict[int, int] = {}
        ended = threading.Event()
        for step in range(1, 6):  # it may not be connected yet as the first of them is made
            saving = runs.save(step, state(), blocking=False)
            saving.wait(WITHIN_S)
            helped |= saving.helped
            if helped:
                break
            ended.wait(1.0)
        helper.close(WITHIN_S)
        assert helped, said
        assert all(one.ok for one in runs.verify())
        assert digest(runs.read().tree) == EXPECTED

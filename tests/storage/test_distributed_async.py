"""Ranks that save together beside training: every part once, all of them or none, whoever is killed, whenever."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from elastic_checkpoint import Checkpointer, CheckpointError, SaveDropped, Saving, StorageError
from elastic_checkpoint.save import staging
from elastic_checkpoint.save.writer import WRITER_MODULE
from elastic_checkpoint.testing import Delay, Plan
from tests.kit.ranks import Died, Raised, returned, run_ranks
from tests.storage.together import beside, build, fingerprint, own_writer, train, writers_left

WITHIN_S = 50.0
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 10**6)
ROUNDS = int(os.environ.get("ROUNDS", "4"))
SLOW = Plan(Delay(2.0, on="write", path="*/data/*s000000002*"))  # every object of step 2


def values(step: int) -> dict[str, Any]:
    """A replicated state that two ranks share evenly."""
    return {"w": [torch.full((5000,), float(step)) for _ in range(8)], "at": step}


def committed(folder: Path | str) -> list[int]:
    """The steps of all commits, newest first, every byte of which is checked."""
    with Checkpointer(Path(folder) / "run") as runs:
        assert all(one.ok for one in runs.verify())
        newest = runs.read()
        for tensor in newest.tree.get("w", []):
            assert tensor.eq(newest.step).all()
        return [commit.step for commit in runs.list()]


def alive(answers: list[Any], *dead: int) -> list[Any]:
    """What the ranks returned that were not to be killed."""
    for rank, answer in enumerate(answers):
        if rank in dead:
            assert answer == Died(-signal.SIGKILL), answer
        else:
            assert not isinstance(answer, Died | Raised), answer
    return [answer for rank, answer in enumerate(answers) if rank not in dead]


# What is saved


def save(rank: int, size: int, folder: str, layout: str) -> list[str]:
    """The digests of what was saved by three saves, while the state goes on changing."""
    with beside(folder, rank, size, name="save") as runs:
        state = build(layout, seed=1)
        train(state, 1)  # the optimizer's state has its size then
        runs.warm(state)
        saved, savings = [], []
        for step in (1, 2, 3):
            train(state, 1)
            saved.append(fingerprint(state))
            savings.append(runs.save(step, state, meta={"by": rank}, blocking=False))
        train(state, 1)
        commits = [saving.wait(WITHIN_S) for saving in savings]
        assert [commit.step for commit in commits] == [1, 2, 3]
        assert commits[-1].meta == {"by": 0, "world_size": size}
        assert commits[-1] == runs.list()[0]
        return saved


class Copies:
    """Gives a copy of its tensor as its state."""

    def __init__(self) -> None:
        self.given: list[weakref.ref[Any]] = []  # to the memory, which several tensors may share

    def state_dict(self) -> dict[str, Any]:
        memory = np.ones(5000, np.float32)
        self.given.append(weakref.ref(memory))
        return {"copy": torch.from_numpy(memory)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def copying(rank: int, size: int, folder: str, group: str | None) -> tuple[bool, int]:
    """Whether a save is still under way, and how much of the memory that it was given exists then."""
    with beside(folder, rank, size, name="copying", faults=SLOW, group=group) as runs:
        state = Copies()
        saving = runs.save(2, {"x": state}, blocking=False)
        gc.collect()
        return not saving.done, sum(memory() is not None for memory in state.given)


def load(rank: int, size: int, folder: str, layout: str, step: int) -> str:
    with beside(folder, rank, size, name=f"load-{layout}-{size}-{step}") as runs:
        state = build(layout, seed=2)
        assert runs.load(state, step=step) == step
        return fingerprint(state)


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(("layout", "size"), [("plain", 2), ("fsdp", 2), ("fsdp", 3), ("plain", 1)])
def test_what_ranks_save_beside_training_loads_at_other_sizes(layout: str, size: int, tmp_path: Path) -> None:
    saved = returned(run_ranks(save, size, str(tmp_path), layout))
    assert all(one == saved[0] for one in saved)
    for other, ranks in (("plain", 1), ("fsdp", 3), ("fsdp", 2)):
        for step in (1, 3):
            found = returned(run_ranks(load, ranks, str(tmp_path), other, step))
            assert found == [saved[0][step - 1]] * ranks, f"step {step} loaded as {other} on {ranks} ranks"


def share(rank: int, size: int, folder: str) -> tuple[list[int], int]:
    """Bytes of tensors that this rank staged at each of three saves."""
    copied: list[int] = []
    move = staging.move
    staging.move = lambda moves: copied.append(sum(one[2] for one in moves)) or move(moves)  # type: ignore[func-returns-value]
    with beside(folder, rank, size, name="share", shard_bytes=2**20) as runs:
        state = {"large": torch.rand(600_000), "small": [torch.rand(1000) for _ in range(50)], "one": torch.zeros(())}
        for step in range(3):
            runs.save(step, state, blocking=False)
        runs.wait()
        own_writer(folder)
    return copied, 4 * 650_001


def go_on(rank: int, size: int, folder: str) -> tuple[bool, int, bool]:
    with beside(folder, rank, size, name="on", faults=SLOW) as runs:
        runs.save(1, values(1), blocking=False).wait(WITHIN_S)
        saving = runs.save(2, values(2), blocking=False)
        steps = 0
        for _ in range(20):  # training's own collectives
            dist.all_reduce(torch.ones(10))
            steps += not saving.done
        begun = saving.done
        return begun, steps, saving.wait(WITHIN_S).step == 2


def test_training_goes_on_while_uploads_are_slow(tmp_path: Path) -> None:
    assert returned(run_ranks(go_on, 2, str(tmp_path))) == [(False, 20, True)] * 2


# Who is killed, and when


def killed(rank: int, size: int, folder: str, moment: str, victims: list[int]) -> str | None:
    """Step 1 is committed, and in step 2 the victims are killed. Returns what came of step 2."""
    with beside(folder, rank, size, name="killed", faults=SLOW, finish_s=600.0) as runs:
        runs.save(1, values(1), blocking=False).wait(WITHIN_S)
        mine = own_writer(folder)
        dist.barrier()
        if moment == "copying" and rank in victims:
            move = staging.move

            def half(moves: list[Any]) -> None:
                move(moves[: len(moves) // 2])
                os.kill(os.getpid(), signal.SIGKILL)

            staging.move = half
        saving = runs.save(2, values(2), blocking=False)
        if moment == "staged":
            Path(folder, f"staged-{rank}").touch()
            while len(list(Path(folder).glob("staged-*"))) < size:  # its barrier would tell too little of the others
                time.sleep(0.001)
            if rank in victims:
                os.kill(os.getpid(), signal.SIGKILL)
        if moment in ("writer", "both") and rank in victims:
            mine.kill()
            if moment == "both":
                os.kill(os.getpid(), signal.SIGKILL)
        try:
            assert saving.wait(WITHIN_S).step == 2
        except CheckpointError as error:
            if moment == "writer":
                assert runs.save(3, values(3), blocking=False).wait(WITHIN_S).step == 3
            return str(error)
        return None


@pytest.mark.nightly(sample=2, of="ranks killed around a save")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_copies_means_no_commit_and_the_others_name_it(victim: int, tmp_path: Path) -> None:
    """Although a save may take ten minutes, they learn of it at once."""
    for told in alive(run_ranks(killed, 3, str(tmp_path), "copying", [victim]), victim):
        assert f"writer process of rank {victim}" in told
        assert "previous checkpoint stays the newest" in told
    assert committed(tmp_path) == [1]
    assert writers_left(tmp_path) == []


@pytest.mark.nightly(sample=2, of="ranks killed around a save")
@pytest.mark.parametrize("victims", [[1], [0], [0, 1, 2]])
def test_what_all_ranks_have_staged_is_committed_though_ranks_are_killed(victims: list[int], tmp_path: Path) -> None:
    """A launcher kills all ranks as soon as one has died; with slow uploads nothing would ever be committed."""
    answers = alive(run_ranks(killed, 3, str(tmp_path), "staged", victims), *victims)
    assert answers == [None] * (3 - len(victims))
    assert writers_left(tmp_path) == []
    assert committed(tmp_path) == [2, 1]


@pytest.mark.nightly(sample=2, of="ranks killed around a save")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_writer_that_is_killed_costs_that_save_on_all_ranks(victim: int, tmp_path: Path) -> None:
    answers = alive(run_ranks(killed, 3, str(tmp_path), "writer", [victim]))
    for rank, told in enumerate(answers):
        assert ("SIGKILL" if rank == victim else f"writer process of rank {victim}") in told
    assert committed(tmp_path) == [3, 1]
    assert writers_left(tmp_path) == []


@pytest.mark.nightly(sample=2, of="ranks killed around a save")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_lost_with_its_writer_means_no_commit_and_the_others_name_it(victim: int, tmp_path: Path) -> None:
    """As when a machine is lost, though its part was staged."""
    for told in alive(run_ranks(killed, 3, str(tmp_path), "both", [victim]), victim):
        assert f"writer process of rank {victim}" in told
    assert committed(tmp_path) == [1]
    assert writers_left(tmp_path) == []


def raises_in_the_copy(rank: int, size: int, folder: str) -> str:
    with beside(folder, rank, size, name="raises", finish_s=600.0) as runs:
        runs.save(1, values(1), blocking=False).wait(WITHIN_S)
        move = staging.move
        if rank == 1:
            staging.move = lambda moves: 1 / 0  # type: ignore[assignment]
        try:
            runs.save(2, values(2), blocking=False).wait(WITHIN_S)
        except (ZeroDivisionError, CheckpointError) as error:
            staging.move = move
            assert runs.save(3, values(3), blocking=False).wait(WITHIN_S).step == 3
            return str(error)
        return "no error"


def test_a_rank_whose_copy_fails_tells_the_others(tmp_path: Path) -> None:
    one, other = returned(run_ranks(raises_in_the_copy, 2, str(tmp_path)))
    assert "on rank 1 of 2: ZeroDivisionError" in one
    assert other == "division by zero"
    assert committed(tmp_path) == [3, 1]


def survive(rank: int, size: int, folder: str) -> tuple[str, int, int]:
    """Rank 2 is killed; the others form a new group, and save in it."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/first", rank=rank, world_size=size)
    with Checkpointer(f"{folder}/run", group="auto", grace_s=2.0, keep=100, log=lambda line: None) as runs:
        runs.save(1, values(1), blocking=False).wait(WITHIN_S)
        old = own_writer(folder)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(CheckpointError) as caught:
            runs.save(2, values(2), blocking=False)
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{folder}/second", rank=rank, world_size=2)
        step = runs.save(3, values(3), blocking=False).wait(WITHIN_S).step
        old.wait(WITHIN_S)
        own_writer(folder)
        here = values(0)
        loaded = runs.load(here)
    dist.destroy_process_group()
    return str(caught.value), step, loaded


def test_those_who_are_left_form_a_group_and_go_on_saving(tmp_path: Path) -> None:
    """With ten minutes' patience for ranks that are slow, a dead one is still named at once."""
    for told, step, loaded in alive(run_ranks(survive, 3, str(tmp_path)), 2):
        assert "rank 2 of 3 is gone" in told
        assert (step, loaded) == (3, 3)
    assert committed(tmp_path) == [3, 1]
    assert writers_left(tmp_path) == []


def at_random(rank: int, size: int, folder: str, name: str, victim: int, whom: str, after_s: float) -> list[int]:
    """Saves step after step until one fails, or the victim is killed; returns what was said to be committed."""
    known = []
    with beside(folder, rank, size, name=name, failures_max=1, keep=10**6, shard_bytes=2**16) as runs:
        first = 1 + max((commit.step for commit in runs.list()), default=0)
        dist.barrier()
        runs.save(first, values(first), blocking=False).wait(WITHIN_S)
        known.append(first)
        mine = own_writer(folder)
        if rank == victim:
            at = os.getpid() if whom == "rank" else mine.pid
            threading.Timer(after_s, os.kill, (at, signal.SIGKILL)).start()
        savings: list[Saving] = []
        with contextlib.suppress(CheckpointError):
            for step in range(first + 1, first + 10_000):
                savings.append(runs.save(step, values(step), blocking=False))
        for saving in savings:
            with contextlib.suppress(CheckpointError):
                known.append(saving.wait(WITHIN_S).step)
    return known


@pytest.mark.nightly(sample=2, of="ranks killed around a save")
def test_kills_at_random_moments_leave_whole_checkpoints_only(tmp_path: Path) -> None:
    """Whatever a rank was told is committed is there, every byte of it, and the next ranks go on from there."""
    moments = random.Random(SEED)
    for number in range(ROUNDS):
        victim, whom = moments.randrange(3), moments.choice(["rank", "writer"])
        after_s = moments.uniform(0, 0.6)
        answers = run_ranks(at_random, 3, str(tmp_path), f"round{number}", victim, whom, after_s)
        known = [step for one in alive(answers, *([victim] if whom == "rank" else [])) for step in one]
        assert writers_left(tmp_path) == [], f"SEED={SEED} round {number}"
        there = committed(tmp_path)
        assert set(known) <= set(there), f"SEED={SEED} round {number}: {whom} {victim} after {after_s:.3f} s"


# Rules that are the same on all ranks


def busy(rank: int, size: int, folder: str, when_busy: str) -> list[int]:
    """The steps of which saves were dropped."""
    slow = Plan(Delay(4.0, on="write", path="*/data/*s000000002*"))
    with beside(folder, rank, size, name="busy", faults=slow, when_busy=when_busy, shard_bytes=2**20) as runs:
        runs.save(1, values(1), blocking=False).wait(WITHIN_S)
        savings = [runs.save(step, values(step), blocking=False) for step in (2, 3, 4)]
        dropped = []
        for saving in savings:
            try:
                saving.wait(WITHIN_S)
            except SaveDropped as error:
                dropped.append(error.step)
        assert runs.save(5, values(5), blocking=False).wait(WITHIN_S).step == 5
        return dropped


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(("when_busy", "dropped"), [("wait", []), ("skip", [4]), ("replace", [3])])
def test_a_third_save_does_what_when_busy_says_on_all_ranks(when_busy: str, dropped: list[int], tmp_path: Path) -> None:
    assert returned(run_ranks(busy, 3, str(tmp_path), when_busy)) == [dropped] * 3
    assert committed(tmp_path) == [step for step in (5, 4, 3, 2, 1) if step not in dropped]


def failing(rank: int, size: int, folder: str) -> list[str]:
    """A file lies where rank 1's objects go; what each save failed of."""
    with beside(folder, rank, size, name="failing", failures_max=2, retry_s=0.01, shard_bytes=2**20) as runs:
        first = runs.save(1, values(1), blocking=False).wait(WITHIN_S)
        dist.barrier()
        data = Path(folder, "run", "data")
        if rank == 0:
            data.rename(data.with_name("elsewhere"))
            data.touch()
        dist.barrier()
        told = []
        for step in (2, 3):
            with pytest.raises(StorageError) as caught:
                runs.save(step, values(step), blocking=False).wait(WITHIN_S)
            told.append(caught.value.operation)
        with pytest.raises(CheckpointError, match="2 saves in a row failed") as stopped:
            runs.save(4, values(4), blocking=False)
        told.append(str(stopped.value).splitlines()[0][:30])
        dist.barrier()
        if rank == 0:
            data.unlink()
            data.with_name("elsewhere").rename(data)
        dist.barrier()
        assert runs.save(5, values(5), blocking=False).wait(WITHIN_S).objects == first.objects
        return told


def test_repeated_failure_stops_all_ranks(tmp_path: Path) -> None:
    one, other = returned(run_ranks(failing, 2, str(tmp_path)))
    assert one == other == ["write", "write", "2 saves in a row failed; the l"]
    assert committed(tmp_path) == [5, 1]


def no_room(rank: int, size: int, folder: str) -> list[str]:
    lines: list[str] = []
    with beside(folder, rank, size, name="room", log=lines.append) as runs:
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, 2**17))  # stands in for a full /dev/shm
        assert [runs.save(step, values(step), blocking=False).done for step in (1, 2)] == [True, True]
        runs.wait()
        return lines


def test_where_one_rank_has_no_memory_for_it_all_wait_and_say_why(tmp_path: Path) -> None:
    for [line] in returned(run_ranks(no_room, 2, str(tmp_path))):
        assert "training waits for each commit: rank 1: " in line
        assert "bytes of shared memory are needed" in line
    assert committed(tmp_path) == [2, 1]


def changing(rank: int, size: int, folder: str) -> None:
    """The state grows, shrinks, and changes its text; saves of both kinds take turns."""
    with beside(folder, rank, size, name="changing") as runs:
        states: list[dict[str, Any]] = [
            {"w": torch.rand(n), "x": "x" * m} for n, m in ((10, 1), (90_000, 1), (10, 3_000_000), (90_000, 1))
        ]
        for step, one in enumerate(states):
            runs.save(step, one, blocking=step == 2)
        runs.wait()
        for step, one in enumerate(states):
            assert runs.read(step=step).tree["x"] == one["x"]
            assert len(runs.read(step=step).tree["w"]) == len(one["w"])
        with pytest.raises(CheckpointError, match="do not call the same"):
            runs.save(7 + rank, states[0], blocking=False)
        with pytest.raises(CheckpointError, match="rank 1 step 8, blocking=True"):
            runs.save(8, states[0], blocking=bool(rank))
        assert runs.save(9, states[0], blocking=False).wait(WITHIN_S).step == 9


def left(rank: int, size: int, folder: str) -> None:
    with beside(folder, rank, size, name="left") as runs:
        state = {"x": torch.rand(10)}
        runs.save(1, state)
        dist.destroy_process_group()
        with pytest.raises(CheckpointError, match=r"torch\.distributed is no more"):
            runs.save(2, state)
        dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=rank, world_size=size)
        runs.save(3, state)


def hold(rank: int, size: int, folder: str) -> tuple[list[int], int, int]:
    """After each of three rounds the descriptors; at the end the writers and arenas that are left."""
    descriptors = []
    for number in range(3):
        with beside(folder, rank, size, name=f"hold{number}") as runs:
            for step in (1, 2):
                runs.save(2 * number + step, values(2 * number + step), blocking=False)
        gc.collect()
        descriptors.append(len(os.listdir("/proc/self/fd")))
    left = [one for one in psutil.Process().children() if WRITER_MODULE in one.cmdline()]
    return descriptors, len(left), Path("/proc/self/maps").read_text().count("checkpoint-arena")


def test_closing_finishes_what_is_staged_and_leaves_nothing(tmp_path: Path) -> None:
    for descriptors, writers, maps in returned(run_ranks(hold, 2, str(tmp_path))):
        assert (writers, maps) == (0, 0)
        assert descriptors[-1] <= descriptors[0], "gloo keeps a few, but no more each time"
    assert committed(tmp_path) == [6, 5, 4, 3, 2, 1]


def with_one_secret(rank: int, size: int, folder: str) -> list[int]:
    os.environ["ELASTIC_SECRET"] = "of the run of both, and random"
    with beside(folder, rank, size, name="secret") as runs:
        savings = [runs.save(step, values(step), blocking=False) for step in (1, 2)]
        return [saving.wait(WITHIN_S).step for saving in savings]


def test_ranks_and_their_writer_processes_save_together_by_tls(tmp_path: Path) -> None:
    assert returned(run_ranks(with_one_secret, 2, str(tmp_path))) == [[1, 2]] * 2
    assert committed(tmp_path) == [2, 1]
    (claim,) = (path for path in (tmp_path / "run" / "claims").iterdir() if "probe" not in path.name)
    assert '"tls":true' in claim.read_text().replace(" ", "")

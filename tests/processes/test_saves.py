"""A save on the cadence stops training for a copy, and what was copied is committed whatever becomes of the worker."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elastic_checkpoint
from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillTogether, Plan
from elastic_checkpoint.testing import Delay, Error, Faults
from elastic_checkpoint.testing import Plan as Rules
from elastic_checkpoint.testing.fault_plan import Rule
from tests.kit.launch import Launch

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

LOSES_ITS_WRITER = """
from elastic_checkpoint.save.writer import WRITER_MODULE
import os, pathlib, signal, sys, threading, time, psutil, torch, elastic
def writer():
    return next((one for one in psutil.Process().children() if WRITER_MODULE in one.cmdline()), None)
model = torch.nn.Linear(4, 1)
optimizer, dataset = torch.optim.SGD(model.parameters(), 0.1), [torch.full((4,), float(i)) for i in range(32)]
with elastic.Run(sys.argv[1], model=model, optimizer=optimizer, dataset=dataset, batch_size=4, virtual_workers=2,
                 epochs=1, seed=0, save_every=1) as run:
    for step in run:
        for x in step:
            step.backward(model(x).sum(), count=len(x))
        if step.index == 2:
            time.sleep(2.5)  # the writer process is made ready after two
        if step.index == 7:
            ends = time.monotonic() + 30
            while not list(pathlib.Path(sys.argv[1], "commits").glob("*.s000000007-*")) and time.monotonic() < ends:
                time.sleep(0.05)  # or the save after this one may wait its turn, for another writer
            writer().suspend()
            threading.Timer(1.0, writer().kill).start()
"""
WITHIN_S = 240.0
LAST = 79  # the writer process is ready two seconds after a coordinator has begun
SLOW: dict[str, Any] = {"steps": 90, "save_every": 20, "unhurried": 99}
KILLED = Plan((Kill(0, At(LAST, "saved")),))


def committed(run: Cluster, options: dict[str, Any] | None = None) -> list[int]:
    with elastic_checkpoint.Checkpointer(run.url, storage_options=options) as checkpoints:
        assert all(verified.ok for verified in checkpoints.verify())
        return [commit.step for commit in checkpoints.list()]


def slow(folder: Path, *rules: Rule) -> tuple[str, dict[str, Any]]:
    """A storage with these faults; each process counts for itself."""
    faults = Faults(Rules(*rules, seed=3))
    url, options = faults.around(str(folder / "slow"), {"auto_mkdir": True})
    return url, {**options, "faults": faults.plan.document()}


def staged(end: End) -> list[int]:
    return [event["step"] for event in end.events if event["event"] == "staged"]


def exchange(one: Path, other: Path) -> None:
    """Each gets the other's name, in one instant."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, at_once = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    assert libc.renameat2(here, bytes(one), here, bytes(other), at_once) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.nightly(sample=1, of="saves and losses")
@pytest.mark.parametrize(
    ("launcher", "workers", "breaks_after"),
    [("elastic", 2, 2), ("torchrun", 2, 2), ("torchrun", None, 2), ("elastic", 2, LAST)],
)
def test_a_run_that_cannot_save_stops_says_what_is_at_risk_and_goes_on_once_the_storage_is_repaired(
    launcher: str, workers: int | None, breaks_after: int,
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path,
) -> None:  # fmt: skip
    """A failure of the storage is no bug of a worker: nobody is restarted to find it out again. The folder of the data
    becomes a file, when saves stop training for the commit, or (the last case) when a process of its own makes them."""
    slowly: dict[str, Any] = {"steps": 140, "seed": 7, "save_every": 2, "unhurried": 99}
    torchrun = launcher == "torchrun" and workers is not None
    run = elastic_cluster(
        workers=workers, launcher=launcher, restarts=0 if torchrun else 3, save_failures_max=3, **slowly
    )
    broken, data = tmp_path / "broken", Path(run.url) / "data"
    broken.write_text("a file")
    run.wait_for(lambda event: event["event"] == "saved" and event["step"] >= breaks_after, within_s=240)
    exchange(broken, data)
    end = run.finish(within_s=240)
    assert (end.exit_code != 0, end.left_behind) == (True, ()), end.output
    assert "SavesFailed: 3 saves in a row failed" in end.output
    assert "a file lies where a folder is needed" in end.output
    saved = max(event["step"] for event in end.events if event["event"] == "saved")
    assert f"at risk  steps {saved} to " in end.output
    assert f"goes on from step {saved}" in end.output
    failed = [event for event in end.events if event["event"] == "save_failed"]
    assert [event["in_a_row"] for event in failed] in ([1, 2, 3], [1, 2, 3, 1])  # a survivor tries once more
    assert {event["saved_step"] for event in failed[:3]} == {saved}
    assert sum(event["event"] == "run_started" for event in end.events) == (workers or 1)
    assert staged(end) or breaks_after < LAST, "a writer process should have been warm by then"

    exchange(broken, data)
    assert committed(run)[0] == saved
    repaired = elastic_cluster(url=run.url, workers=workers, launcher=launcher, **{**slowly, "unhurried": 0})
    resumed = repaired.finish(within_s=240, reference=elastic_undisturbed(steps=140, seed=7).events)
    assert resumed.verdict.ok, f"{resumed.verdict}\n{resumed.output}"
    assert f"resuming after step {saved} " in resumed.output


@pytest.mark.nightly(sample=1, of="saves and losses")
def test_what_was_copied_is_committed_though_the_process_is_killed(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    run = elastic_cluster(plan=KILLED, seed=7, **SLOW)
    cut = run.finish(within_s=240)
    assert (cut.exit_code, cut.left_behind) == (-signal.SIGKILL, ()), cut.output
    assert LAST + 1 in staged(cut)
    assert committed(run)[0] == LAST + 1

    end = run.start().finish(within_s=240, reference=elastic_undisturbed(steps=90, seed=7).events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert end.steps_redone == 0


@pytest.mark.nightly(sample=1, of="saves and losses")
def test_what_a_lost_coordinator_had_copied_is_committed_while_the_others_go_on(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    run = elastic_cluster(workers=3, launcher="elastic", plan=KILLED, seed=7, **SLOW)
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=90, seed=7).events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert LAST + 1 in staged(end)
    assert committed(run)[:2] == [90, LAST + 1]


@pytest.mark.nightly(sample=1, of="saves and losses")
def test_a_save_is_finished_before_those_who_come_after_all_were_lost_go_on(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A claim that did not wait for it would leave it outside the lineage."""
    url, options = slow(tmp_path, Delay(3.0, on="write", path="*/data/*", after=4))
    plan = Plan((KillTogether((0, 1), At(LAST, "saved")),))
    run = elastic_cluster(
        url=url, workers=2, launcher="elastic", plan=plan, seed=7, storage=json.dumps(options),
        storage_options=options, **SLOW,
    )  # fmt: skip
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=90, seed=7).events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert LAST + 1 in [event["step"] for event in end.events if event["event"] == "loaded"]
    assert end.steps_redone <= 1  # what was in flight


@pytest.mark.nightly(sample=1, of="saves and losses")
def test_saves_commit_while_uploads_are_slow_and_workers_are_lost(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Uploads take seconds, writes fail now and then, and no save is torn by the losses of those who began it."""
    url, options = slow(tmp_path, Delay(1.5, on="write", path="*/data/*"), Error("reset", on="write", chance=0.1))
    losses = [Kill(worker, At(None, "in_update", world_size=3)) for worker in (1, 0, 2)]
    run = elastic_cluster(
        url=url, workers=3, launcher="elastic", plan=Plan(tuple(losses)), seed=7, storage=json.dumps(options),
        storage_options=options, steps=110, save_every=25, unhurried=99,
    )  # fmt: skip
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=110, seed=7).events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert staged(end)
    assert set(staged(end)) <= {event["step"] for event in end.events if event["event"] == "saved"} | set(
        committed(run, options)
    )


def test_a_node_that_leaves_waits_for_the_save_that_its_last_worker_had_copied(tmp_path: Path) -> None:
    """Its agent hears of the death of a worker that the kernel is still taking apart, and has yet to get its writer."""
    url, options = slow(tmp_path, Delay(3.0, on="write", path="*/data/*", after=4))
    record = tmp_path / "record"
    storage = json.dumps({**options, "record": os.fspath(record)})
    small = [url, "--steps=600", "--save-every=20", "--unhurried=99", f"--storage={storage}"]
    command = ["run", "--standalone", "--nproc-per-node=1", "-m", "tests.kit.programs.small", *small]
    with Launch("elastic", command) as node:
        node.wait_for(lambda: record.exists() and bool(record.read_text()), "a slow upload", within_s=WITHIN_S)
        (worker,) = [pid for pid in node.pids if Path(f"/proc/{pid}/comm").read_text() == "elastic-worker\n"]
        node.process.send_signal(signal.SIGSTOP)  # it hears of both at once
        node.send(signal.SIGTERM)
        os.kill(worker, signal.SIGKILL)
        node.send(signal.SIGCONT)
        node.finish(within_s=WITHIN_S)
        output = node.output
    assert "waiting for a save to be committed" in output, output
    with elastic_checkpoint.Checkpointer(url, storage_options=options) as checkpoints:
        assert all(verified.ok for verified in checkpoints.verify())
        struck = [json.loads(line)["path"] for line in record.read_text().splitlines()]
        assert any(f"s{commit.step:09}" in path for commit in checkpoints.list() for path in struck), struck


@pytest.mark.nightly(sample=1, of="saves and losses")
def test_the_last_save_is_made_again_where_its_writer_process_is_killed(tmp_path: Path) -> None:
    """The kernel's OOM killer takes it when all else is done: the run failed, and what it had not saved was lost."""
    script, url = tmp_path / "script.py", tmp_path / "run"
    script.write_text(LOSES_ITS_WRITER)
    command: list[str] = [sys.executable, os.fspath(script), os.fspath(url)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "the last save failed, and is tried again in 1 s: step 8 was not saved: the writer process" in (
        ended.stdout + ended.stderr
    )
    with elastic_checkpoint.Checkpointer(url) as checkpoints:
        assert checkpoints.read().step == 8

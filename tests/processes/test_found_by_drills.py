"""What random drills have found, each made to happen for sure."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Disk, Kill, Plan, Raise
from elastic.drill.machine import disk
from elastic.drill.machine.leftovers import Snapshot

pytestmark = pytest.mark.nightly(sample=2, of="what drills have found")

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]


@pytest.mark.nightly(sample=1, of="what was no failure")
def test_a_run_that_ends_while_another_node_replaces_a_worker_has_not_failed_there(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """The hub's agent is gone as soon as its own workers are; the other one took that for a loss. (Drill 131.)"""
    plan = Plan((Kill(3, At(5, "applied")),))
    run = elastic_cluster(workers=4, nodes=2, launcher="elastic", steps=6, seed=7, plan=plan)
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=6, seed=7).events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output


@pytest.mark.nightly(sample=1, of="a disk in a drill")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_a_disk_that_cannot_be_written_for_a_moment_at_the_last_save_costs_no_run(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Two workers failed at it, one after the other, and the run was over. (Drill 117.)"""
    url, whole = tmp_path / "disk", elastic_undisturbed(steps=6, seed=7)
    disk.mount(url, like=tmp_path)
    try:
        run = elastic_cluster(
            url=url, launcher="elastic", workers=2, steps=6, seed=7, save_every=100, save_failures_max=1,
            plan=Plan((Disk(0, At(5, "finish"), "read_only"),)),
        )  # fmt: skip
        failed = run.wait_for("save_failed", within_s=240)
        disk.heal(url)
        end = run.finish(within_s=240, reference=whole.events)
        assert failed["step"] == 6
        assert end.verdict.ok, f"{end.verdict}\n{end.output}"
        assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
        assert "is tried again in 1 s" in end.output
    finally:
        disk.unmount(url)


@pytest.mark.nightly(sample=1, of="a disk in a drill")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_a_disk_that_is_full_for_a_moment_when_a_run_goes_on_alone_costs_no_run(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Two workers in turn could not claim it, and the same failure twice ends a run. (Drills 228 and 240.)"""
    url, whole = tmp_path / "disk", elastic_undisturbed(steps=6, seed=7)
    disk.mount(url, like=tmp_path)
    try:
        plan = Plan((Disk(0, At(2, "applied"), "full"), Kill(0, At(3, "forward"))))
        run = elastic_cluster(url=url, launcher="elastic", workers=1, steps=6, seed=7, plan=plan)
        deadline = time.monotonic() + 60
        run.start()
        while "is tried again in 2 s" not in run.output() and time.monotonic() < deadline:
            time.sleep(0.05)
        disk.heal(url)
        end = run.finish(within_s=240)
        assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
        assert end.verdict.ok, f"{end.verdict}\n{end.output}"
        assert end.weights_sha256 == whole.weights_sha256
        assert "resuming after step 2 of 6" in end.output
    finally:
        disk.unmount(url)


@pytest.mark.nightly(sample=1, of="what was no failure")
def test_drawn_failures_do_not_look_like_a_bug(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """Between `applied` of one step and the next step's shares a worker stands at one step: the same failure there,
    twice, ends a run. Both may come later, and the second does. (Drill 167.)"""
    faults = (Raise(0, At(2, "applied", later=True)), Raise(0, At(3, "backward", later=True)))
    run = elastic_cluster(workers=1, launcher="elastic", steps=12, seed=7, plan=Plan(faults))
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=12, seed=7).events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert [event["step"] for event in end.events if event["event"] == "fault"] == [2, 6]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_a_disk_that_is_struck_twice_is_healed_of_both(tmp_path: Path) -> None:
    """The second fault came before the first one's second was over. (Drills 152 and 405.)"""
    url = tmp_path / "disk"
    disk.mount(url, like=tmp_path)
    try:
        for how in ("read_only", "read_only"):
            disk.strike(url, how)
        with pytest.raises(OSError, match="Read-only"):
            (url / "new").touch()
        disk.heal(url)
        (url / "new").touch()
        for first, second in (("full", "read_only"), ("read_only", "full")):
            disk.strike(url, first)
            disk.strike(url, second)
            disk.heal(url)
            (url / "new").write_bytes(bytes(4096))
    finally:
        disk.unmount(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a disk is mounted")
def test_a_disk_of_the_users_is_not_taken_away(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "theirs", tmp_path], check=True)
    try:
        disk.unmount(tmp_path)
        assert tmp_path.is_mount()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_what_a_killed_loader_process_left_in_shared_memory_goes_with_the_next_worker(tmp_path: Path) -> None:
    """It was handing over a batch when everything was killed: torch had made the file and not yet taken its name away,
    and nobody else ever does. (Drill 254.)"""
    (tmp_path / "tmp").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    program = (
        "import os, signal, subprocess, sys, time; from elastic.data.scratch import Scratch\n"
        "scratch, child = Scratch(), subprocess.Popen(['true'])\n"
        "scratch.note([child.pid]); child.wait(); open(f'/dev/shm/torch_{child.pid}_1_0', 'w').close()\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    before = Snapshot.take(tmp_path)
    command: list[str] = [sys.executable, "-c", program]
    told = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=60)
    pid = int(told.stdout)
    left = Path(f"/dev/shm/torch_{pid}_1_0")
    try:
        assert left.exists()
        assert before.new(tmp_path, [pid]) != []
        assert before.new(tmp_path, [pid], killed=True) == []
        (folder,) = (tmp_path / "tmp").iterdir()
        os.utime(folder, (0, 0))
        again = "from elastic.data.scratch import Scratch; Scratch().close()"
        subprocess.run([sys.executable, "-c", again], env=environ, check=True, timeout=60)
        assert not left.exists()
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        left.unlink(missing_ok=True)

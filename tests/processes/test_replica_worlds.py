"""Replicas of several workers, as a script finds them that knows torch.distributed alone."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.agents import HERE, STAY, WITHIN_S, Here, Run, meet, says
from tests.kit.launch import Launch

MESH = """
    import os, sys
    import torch, torch.distributed as dist
    if "bare" in sys.argv:
        dist.init_process_group()
    import elastic
    mesh = elastic.device_mesh()
    total = torch.tensor([10 ** int(os.environ.get("LOCAL_RANK", "0"))])
    dist.all_reduce(total, group=mesh.get_group())
    sys.stdout.write(f"mesh {mesh.size()} sum {total.item()}\\n")
"""
TURNS = (
    HERE
    + """
import torch, torch.distributed as dist
dist.init_process_group()
me, stop = int(os.environ["LOCAL_RANK"]), sys.argv[1]
if (me, os.environ["ELASTIC_RESTART"], sys.argv[2]) == (3, "0", "raises"):
    raise ValueError("once")
if (me, os.environ["ELASTIC_RESTART"], sys.argv[2]) == (3, "0", "exits"):
    os._exit(3)
while True:
    turn = torch.tensor([10 ** me, int(me % 2 == 0 and os.path.exists(stop))])
    dist.all_reduce(turn)
    say("turn", me, os.getpid(), turn[0].item())
    if turn[1]:
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""
)
PROGRAMS = Path(__file__).parents[1] / "kit" / "programs"
SUMS = re.compile(r"mesh (\d+) sum (\d+)")


def sums(output: str) -> list[tuple[str, str]]:
    return sorted(SUMS.findall(output))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_replica_has_a_world_of_its_own_where_torchs_groups_need_no_argument(run: Run, method: str) -> None:
    flags = ["--nproc-per-node=4", "--replica-size=2", f"--start-method={method}"]
    output = run(MESH, *flags, args=("bare",)).succeed(within_s=WITHIN_S)
    assert sums(output) == [("2", "11")] * 2 + [("2", "1100")] * 2, output


def test_a_worker_that_is_a_replica_by_itself_has_a_mesh_of_one(run: Run) -> None:
    assert sums(run(MESH, "--nproc-per-node=2").succeed(within_s=WITHIN_S)) == [("1", "1"), ("1", "10")]


@pytest.mark.parametrize(("workers", "found"), [(2, [("2", "11")] * 2), (None, [("1", "1")])])
def test_the_mesh_is_over_all_of_torchruns_workers_and_of_one_without_any(
    tmp_path: Path, workers: int | None, found: list[tuple[str, str]]
) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(MESH))
    with Launch("script", workers=workers, cwd=tmp_path) as launch:
        assert sums(launch.succeed(within_s=WITHIN_S)) == found


def turns(output: str) -> Counter[tuple[int, int, int]]:
    """How often each (local rank, pid, sum) came."""
    return Counter(
        (int(rank), int(pid), int(total)) for rank, pid, total in re.findall(r"turn (\d) (\d+) (\d+)", output)
    )


def both_replicas_go_on(launch: Launch, workers: list[tuple[int, int, int]]) -> bool:
    """Whether each of these workers has seen its whole replica."""
    sums = {0: 11, 1: 11, 2: 1100, 3: 1100}
    found = turns(launch.output)
    return all((rank, pid, sums[rank]) in found for rank, pid, _ in workers)


@pytest.mark.parametrize("fault", ["killed", "raises", "exits"])
def test_a_replica_that_loses_a_worker_is_lost_whole_and_comes_back_whole(run: Run, tmp_path: Path, fault: str) -> None:
    """Its mate waits in a collective, for good: the agent ends it at once, and the other replica hears of nothing."""
    launch = run(TURNS, "--nproc-per-node=4", "--replica-size=2", args=(str(tmp_path / "stop"), fault))
    here = Here(launch)
    first = {rank: pid for rank, pid, _ in here.wait(4)[:4]}
    if fault == "killed":
        launch.wait_for(lambda: both_replicas_go_on(launch, here.all()), "their worlds", within_s=WITHIN_S)
        os.kill(first[3], signal.SIGKILL)
    new = here.wait(6)[4:]
    assert sorted((rank, restart) for rank, _, restart in new) == [(2, 1), (3, 1)]
    assert {first[2], first[3]}.isdisjoint(launch.pids)
    there = [(rank, first[rank], 0) for rank in (0, 1)] + new
    launch.wait_for(lambda: both_replicas_go_on(launch, there), "the new one's world", within_s=WITHIN_S)
    (tmp_path / "stop").touch()
    output = launch.succeed(within_s=WITHIN_S)
    assert len(here.all()) == 6
    assert {pid for rank, pid, _ in turns(output) if rank < 2} == {first[0], first[1]}
    assert output.count("ended: ") == 1, output
    assert output.count("ValueError: once") == (fault == "raises"), output


def test_a_node_of_replicas_of_another_size_is_refused_by_name(run: Run) -> None:
    nodes = [*meet("1:2"), "--nproc-per-node=2"]
    first = run(STAY, *nodes, "--replica-size=2")
    Here(first).wait(2)
    other = run(STAY, *nodes)
    assert other.finish(within_s=WITHIN_S) == 1
    says(other, "the run is in replicas of 2 workers")
    assert "started with --replica-size=1" in other.output
    first.send(signal.SIGTERM)
    assert first.finish(within_s=WITHIN_S) == 0


def views(launch: Launch) -> Counter[tuple[int, ...]]:
    """How often each view was told: the size of its replicas, and the pids of its workers by rank."""
    found = re.findall(r"view \d((?: \d+)+)$", launch.output, re.M)
    return Counter(tuple(map(int, numbers.split())) for numbers in found)


@pytest.mark.parametrize("fault", ["killed", "leaves"])
def test_views_hold_whole_replicas_whatever_happens_to_one_of_their_workers(
    run: Run, tmp_path: Path, fault: str
) -> None:
    """One that leaves by itself takes its replica along, which would wait for the next view, for good."""
    source = (PROGRAMS / "stands_in_views.py").read_text()
    launch = run(source, "--nproc-per-node=4", "--replica-size=2", args=(str(tmp_path),))
    here = Here(launch)
    pids = {rank: pid for rank, pid, _ in here.wait(4)}

    def told(*members: int) -> None:
        view = (2, *members)
        launch.wait_for(lambda: views(launch)[view] == len(members), f"a view of {members}", within_s=WITHIN_S)

    told(*(pids[rank] for rank in range(4)))
    if fault == "leaves":
        (tmp_path / "leaves").touch()
        told(pids[0], pids[1])
        says(launch, "left 2 by itself")
        launch.wait_for(lambda: pids[3] not in launch.pids, "its mate's end", within_s=WITHIN_S)
    else:
        os.kill(pids[2], signal.SIGKILL)
        told(pids[0], pids[1])
        new = {rank: pid for rank, pid, _ in here.wait(6)[4:]}
        told(pids[0], pids[1], new[2], new[3])
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0, launch.output
    assert all(len(view) % 2 for view in views(launch))
    assert launch.output.count(" ended: ") == (fault == "killed"), launch.output
    assert launch.output.count("Traceback") == 0, launch.output

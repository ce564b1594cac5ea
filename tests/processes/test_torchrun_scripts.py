"""Scripts for torchrun under `elastic run`: they find what torchrun gives, and all start again where one is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from elastic.launch.workers.group_store import GroupStore
from elastic_checkpoint import linux
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from tests.kit.agents import HERE, WITHIN_S, Here, Run, meet, says
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=7, of="torchrun scripts")

OTHERS = Path(__file__).parents[1] / "kit" / "programs" / "others"
VARIABLES = """
    import json, os, sys
    kinds = ("RANK", "WORLD", "LOCAL", "GROUP", "ROLE", "MASTER", "TORCHELASTIC", "TORCH_NCCL", "OMP")
    found = {name: value for name, value in os.environ.items() if name.startswith(kinds)}
    sys.stdout.write(json.dumps(found) + "\\n")
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([10 ** dist.get_rank()])
    dist.all_reduce(total)
    sys.stdout.write(f"sum {total.item()}\\n")
    dist.destroy_process_group()
"""
TURNS = (
    HERE
    + """
import signal, torch, torch.distributed as dist
me = int(os.environ["RANK"])
if me == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "early" in sys.argv:
    signal.pause()
dist.init_process_group("gloo")
say("world", dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"])
while True:
    turn = torch.tensor([int(me == 0 and os.path.exists(sys.argv[1]))])
    dist.all_reduce(turn)
    if turn.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""
)
PREEMPTED = (
    HERE
    + """
import torch, torch.distributed as dist
import elastic
dist.init_process_group("gloo")
with elastic.Preemption() as preemption:
    preemption.agreed()
    say("world", dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"])
    while not os.path.exists(sys.argv[1]) or dist.get_world_size() > 1:
        time.sleep(0.05)
        if preemption.agreed():
            say("saved")
            preemption.exit()
dist.destroy_process_group()
"""
)
RUN = (
    HERE
    + """
import torch, torch.distributed as dist
assert "RANK" in os.environ
if "group" in sys.argv:
    dist.init_process_group("gloo")
if "scanned" in sys.argv:
    import socket
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as scanner:
        scanner.settimeout(10)
        scanner.sendall(b"GET / HTTP/1.0 " * 20)
        try:
            scanner.recv(1)
        except OSError:
            pass
import elastic
elastic.seed(0)
model = torch.nn.Linear(4, 1)
dataset = torch.utils.data.TensorDataset(torch.randn(4000, 4))
with elastic.Run(
    sys.argv[1], model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=dataset, batch_size=8,
    virtual_workers=4, epochs=1,
) as run:
    assert not [name for name in os.environ if name in ("RANK", "MASTER_ADDR") or name.startswith("TORCHELASTIC_")]
    for step in run:
        for (x,) in step:
            step.backward(model(x).square().sum(), count=len(x))
        time.sleep(0.05)
        if run.is_coordinator:
            say("step", step.index, run.world_size)
        if os.path.exists(sys.argv[2]):
            run.stop("as the test wants")
"""
)
NO_GROUP = "formed no group of torch.distributed's and began no elastic.Run"


def worlds(launch: Launch) -> list[tuple[int, int]]:
    """(world size, restart count) of each worker that has joined a group, in order."""
    return [(int(size), int(count)) for size, count in re.findall(r"^world (\d+) (\d+)$", launch.output, re.M)]


def has_worlds(launch: Launch, wanted: list[tuple[int, int]]) -> None:
    launch.wait_for(lambda: worlds(launch) == wanted, f"worlds {wanted}", within_s=WITHIN_S)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_finds_the_variables_that_torchrun_sets(run: Run, tmp_path: Path, method: str) -> None:
    ours = run(VARIABLES, "--nproc-per-node=2", f"--start-method={method}", "--max-restarts=3")
    said = ours.succeed(within_s=WITHIN_S)
    flags = ("--nnodes=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
    with Launch("script", workers=2, torchrun=flags, cwd=tmp_path) as theirs:
        of_torchrun = theirs.succeed(within_s=WITHIN_S)
    assert said.count("sum 11") == of_torchrun.count("sum 11") == 2
    found, expected = (
        sorted((json.loads(line) for line in text.splitlines() if line.startswith("{")), key=lambda one: one["RANK"])
        for text in (said, of_torchrun)
    )
    # where the group meets, where a failure is written, and what torchrun's own agent reads
    differ = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    assert [{name: one[name] for name in one.keys() - differ} for one in found] == [
        {name: one[name] for name in one.keys() - differ} for one in expected
    ]
    assert all(one.keys() >= {"MASTER_ADDR", "MASTER_PORT"} for one in found)


def test_all_start_again_where_one_is_killed_until_max_restarts_are_used_up(run: Run, tmp_path: Path) -> None:
    launch = run(TURNS, "--nproc-per-node=3", "--max-restarts=1", args=(str(tmp_path / "stop"),))
    has_worlds(launch, [(3, 0)] * 3)
    first = Here(launch).all()
    os.kill(first[1][1], signal.SIGKILL)
    has_worlds(launch, [(3, 0)] * 3 + [(3, 1)] * 3)
    second = Here(launch).all()[3:]
    assert {rank for rank, _, _ in second} == {0, 1, 2}
    assert not {pid for _, pid, _ in first} & {pid for _, pid, _ in second}
    os.kill(second[0][1], signal.SIGKILL)
    assert launch.finish(within_s=WITHIN_S) == 1
    assert "restart 1 of 1: all start again, 3 workers now" in launch.output
    assert "--max-restarts=1 allows no further start" in launch.output


def test_one_that_is_killed_before_any_group_is_replaced_alone_and_the_group_forms_anew(
    run: Run, tmp_path: Path
) -> None:
    launch = run(TURNS, "--nproc-per-node=2", args=(str(tmp_path / "stop"), "early"))
    launch.wait_for(lambda: "group" in launch.output or len(Here(launch).all()) == 2, "workers", within_s=WITHIN_S)
    victim = next(pid for rank, pid, _ in Here(launch).wait(2) if rank == 0)
    os.kill(victim, signal.SIGKILL)
    launch.wait_for(lambda: worlds(launch)[-2:] == [(2, 1)] * 2, "both in a group", within_s=WITHIN_S)
    (tmp_path / "stop").touch()
    launch.succeed(within_s=WITHIN_S)


def test_the_first_key_is_known_at_the_end_of_the_worker_that_wrote_it() -> None:
    """It may end before the next look for one; whether its group has formed decides what follows."""
    formed = list[str]()
    loop, store = EventLoop(), GroupStore("127.0.0.1")
    store.open(loop, lambda: formed.append("forms"))
    with contextlib.closing(loop), contextlib.closing(store), ThreadPoolExecutor() as threads:
        connecting = threads.submit(TCPStore, "127.0.0.1", store.port, is_master=False)
        while not connecting.done():
            run_once(loop, 0.05)
        store.look()
        assert formed == []
        connecting.result().add("the first key", 1)
        store.look()
        assert formed == ["forms"]
        store.look()
        assert formed == ["forms"]


def test_all_start_again_at_the_new_size_where_a_node_joins_and_where_one_leaves(run: Run, tmp_path: Path) -> None:
    together = meet("1:2")
    flags = ["--nproc-per-node=2", "--max-restarts=0", *together]
    first = run(TURNS, *flags, args=(str(tmp_path / "stop"),))
    has_worlds(first, [(2, 0)] * 2)
    second = run(TURNS, *flags, args=(str(tmp_path / "stop"),))
    has_worlds(second, [(4, 0)] * 2)
    has_worlds(first, [(2, 0)] * 2 + [(4, 0)] * 2)
    second.send(signal.SIGTERM)
    assert second.finish(within_s=WITHIN_S) == 0
    has_worlds(first, [(2, 0)] * 2 + [(4, 0)] * 2 + [(2, 0)] * 2)
    (tmp_path / "stop").touch()
    first.succeed(within_s=WITHIN_S)


def test_those_who_are_left_start_again_where_the_node_with_the_group_leaves(run: Run, tmp_path: Path) -> None:
    flags = ["--nproc-per-node=1", *meet("1:2")]
    first = run(TURNS, *flags, args=(str(tmp_path / "stop"),))
    has_worlds(first, [(1, 0)])
    second = run(TURNS, *flags, args=(str(tmp_path / "stop"),))
    has_worlds(second, [(2, 0)])
    first.send(signal.SIGTERM)
    assert first.finish(within_s=WITHIN_S) == 0
    has_worlds(second, [(2, 0), (1, 0)])
    (tmp_path / "stop").touch()
    second.succeed(within_s=WITHIN_S)


def test_all_start_again_where_the_first_node_is_lost_before_a_group_has_formed(run: Run, tmp_path: Path) -> None:
    """The others would come to an address at which nobody is, and wait for torch's timeout."""
    loaded = tmp_path / "loaded"
    script = HERE + f'while not os.path.exists("{loaded}"): time.sleep(0.05)\n' + TURNS
    flags = ["--nproc-per-node=1", "--max-restarts=0", *meet("1:2")]
    first = run(script, *flags, args=(str(tmp_path / "stop"),))
    Here(first).wait(1)
    second = run(script, *flags, args=(str(tmp_path / "stop"),))
    Here(second).wait(1)
    first.send(signal.SIGKILL)
    Here(second).wait(2)
    loaded.touch()
    has_worlds(second, [(1, 0)])
    (tmp_path / "stop").touch()
    second.succeed(within_s=WITHIN_S)


def test_a_script_that_heeds_notices_saves_and_goes_on_where_nobody_leaves(run: Run, tmp_path: Path) -> None:
    """All workers agree to leave, those of the other node too: their status says that they are to start again."""
    flags = ["--nproc-per-node=1", "--max-restarts=0", *meet("1:2")]
    first = run(PREEMPTED, *flags, args=(str(tmp_path / "stop"),))
    has_worlds(first, [(1, 0)])
    second = run(PREEMPTED, *flags, args=(str(tmp_path / "stop"),))
    has_worlds(second, [(2, 0)])
    second.send(signal.SIGTERM)
    assert second.finish(within_s=WITHIN_S) == 0
    assert second.output.count("\nsaved") == 1
    first.wait_for(lambda: worlds(first)[-1] == (1, 0) and len(worlds(first)) == 3, "one again", within_s=WITHIN_S)
    assert first.output.count("\nsaved") >= 1
    (tmp_path / "stop").touch()
    first.succeed(within_s=WITHIN_S)


@pytest.mark.parametrize("group", ["group", "no group", "scanned"])
def test_a_script_that_enters_a_run_is_none_of_torchruns(run: Run, tmp_path: Path, group: str) -> None:
    """It may have formed a group before: a loss is the run's from then on, and the others stay.

    A scanner of ports, which comes to where one would meet, forms none.
    """
    stop = tmp_path / "stop"
    launch = run(RUN, "--nproc-per-node=2", args=(str(tmp_path / "run"), str(stop), group))
    launch.wait_for(lambda: re.search(r"^step [5-9] 2$", launch.output, re.M) is not None, "steps", within_s=WITHIN_S)
    first = Here(launch).all()
    os.kill(first[1][1], signal.SIGKILL)
    if group == "group":  # one that takes its place waits for a group that is never whole again
        launch.wait_for(lambda: re.search(r"^step \d+ 1$", launch.output, re.M) is not None, "one", within_s=WITHIN_S)
    else:
        Here(launch).wait(3)
    assert first[0][1] in launch.pids
    stop.touch()
    launch.finish(within_s=WITHIN_S)
    assert "all start again" not in launch.output


def test_a_script_that_shares_nothing_is_told_so_in_a_line(run: Run) -> None:
    output = run(HERE, "--nproc-per-node=2").succeed(within_s=WITHIN_S)
    assert output.count(NO_GROUP) == 1
    assert "\n  " not in output.partition(NO_GROUP)[2]


@pytest.mark.parametrize("script", ["ddp", "fsdp2", "lightning_ddp", "hugging_face"])
def test_a_script_of_other_peoples_goes_on_from_its_own_checkpoint(run: Run, tmp_path: Path, script: str) -> None:
    source = (OTHERS / f"{script}.py").read_text()
    saved = tmp_path / "saved"
    saved.mkdir()
    flags = ("--nproc-per-node=3", "--redirects=0")
    launch = run(source, *flags, args=(str(saved), "0.2"))
    says(launch, "world size 3")
    launch.wait_for(lambda: any(saved.iterdir()), "a save", within_s=WITHIN_S)
    before = launch.output.count("loss")
    launch.wait_for(lambda: launch.output.count("loss") > before + 2, "steps after it", within_s=WITHIN_S)
    workers = [pid for pid in launch.pids if (stat := linux.process_stat(pid)) and stat.name == "elastic-worker"]
    assert len(workers) == 3
    os.kill(workers[1], signal.SIGKILL)
    output = launch.succeed(within_s=WITHIN_S)
    begun = re.findall(r"^world size (.*)$", output, re.M)
    assert len(begun) == 2
    assert begun[0] != begun[1], "the second goes on where the first had saved"
    assert len(re.findall(r"^done: loss", output, re.M)) == 1

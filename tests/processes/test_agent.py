"""`elastic run` with scripts that know nothing of elastic: processes are started, watched, replaced and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.agents import HERE, STAY, WITHIN_S, Here, Run

pytestmark = pytest.mark.nightly(sample=4, of="what an agent does")


def test_a_script_without_elastic_simply_runs(run: Run) -> None:
    launch = run(
        HERE + "say('args', *sys.argv[1:], __name__, __file__ == os.path.abspath(sys.argv[0]))",
        "--nproc-per-node=2",
        args=("--lr", "1", "-m"),
    )
    output = launch.succeed(within_s=WITHIN_S)
    assert sorted(rank for rank, _, _ in Here(launch).all()) == [0, 1]
    assert output.count("args --lr 1 -m __main__ True") == 2
    assert output.count("and began no elastic.Run") == 1


def test_a_killed_worker_is_replaced_in_its_place_and_the_others_stay(run: Run) -> None:
    launch = run(STAY, "--nproc-per-node=3")
    first = Here(launch).wait(3)
    rank, victim, _ = first[1]
    os.kill(victim, signal.SIGKILL)
    (new,) = Here(launch).wait(4)[3:]
    assert (new[0], new[2]) == (rank, 1)
    assert new[1] not in {pid for _, pid, _ in first}
    assert {pid for _, pid, _ in first} - {victim} <= set(launch.pids)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


def test_a_worker_imports_nothing_while_others_wait_for_it(run: Run, tmp_path: Path) -> None:
    """46 modules were imported by each newcomer, late and one by one: its join cost the survivors twice as much."""
    source = """
        import os, signal, sys, time
        import torch
        import elastic
        imported = set(sys.modules)
        elastic.seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        dataset = torch.utils.data.TensorDataset(torch.randn(800, 4))
        with elastic.Run(
            sys.argv[1], model=model, optimizer=optimizer, dataset=dataset, batch_size=8, virtual_workers=2, epochs=1
        ) as run:
            for step in run:
                if run.world_size < 2:
                    time.sleep(0.05)  # a run that is over needs no replacement
                for (points,) in step:
                    step.backward(model(points).sum(), count=len(points))
                if step.index == 5 and run.rank == 0 and os.environ["ELASTIC_RESTART"] == "0":
                    os.kill(os.getpid(), signal.SIGKILL)
            late = sorted(set(sys.modules) - imported)
            ours = [name for name in late if name.split(".")[0] in ("elastic", "elastic_checkpoint", "fsspec")]
            print("imported late:", ours, "coordinator" if run.is_coordinator else "", flush=True)
    """
    launch = run(source, "--nproc-per-node=2", args=(str(tmp_path / "run"),))
    output = launch.succeed(within_s=WITHIN_S)
    assert output.count("imported late: []") == 2
    assert output.count("imported late: [] coordinator") == 1, "who takes over imports nothing either"


def test_what_runs_a_script_loads_little_of_elastic() -> None:
    """A fresh interpreter does before the script's first line, for scripts that never import elastic too."""
    source = "import sys, elastic.launch.processes.worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("elastic.membership.")] == [
        "elastic.membership.messages",
        "elastic.membership.messages.wire",
        "elastic.membership.messages.message_checks",
        "elastic.membership.messages.worker_messages",
        "elastic.membership.progress",
    ]
    assert "torch" not in loaded


def test_forked_workers_are_like_fresh_ones(run: Run) -> None:
    """Random streams, session, parent, standard input, environment and descriptors, none of them the fork server's."""
    source = (
        HERE
        + """
import random, torch, numpy
def me():
    fds = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return fds
say("random", random.random(), torch.rand(1).item(), numpy.random.rand())
say("own", os.getpgrp() == os.getpid())
say("parent", os.getppid())
say("stdin", os.readlink("/proc/self/fd/0"))
known = {0, 1, 2, int(os.environ["ELASTIC_CHANNEL"]), int(os.environ["ELASTIC_PROGRESS"])}
say("more", [name for fd, name in me().items() if fd not in known and "/fd" not in name])
say("place", os.environ["RANK"], os.environ["MASTER_ADDR"])
say("threads", os.environ["OMP_NUM_THREADS"], os.environ["LOCAL_WORLD_SIZE"])
"""
    )
    launch = run(source, "--nproc-per-node=2", env={"RANK": "5", "MASTER_ADDR": "elsewhere"})
    agent = launch.process.pid
    output = launch.succeed(within_s=WITHIN_S)
    numbers = [line.split()[1:] for line in output.splitlines() if line.startswith("random")]
    assert all(len(set(column)) == 2 for column in zip(*numbers, strict=True)), numbers
    assert output.count("own True") == 2
    assert output.count(f"parent {agent}\n") == 2
    assert output.count("stdin /dev/null") == 2
    assert output.count("more []") == 2, output
    assert output.count("place 0 127.0.0.1") == output.count("place 1 127.0.0.1") == 1  # and not this process's own
    assert output.count("threads 1 2") == 2


def test_nothing_outlives_an_agent_that_is_killed(run: Run) -> None:
    launch = run(STAY, "--nproc-per-node=2")
    Here(launch).wait(2)
    launch.process.kill()
    assert launch.finish(within_s=WITHIN_S) == -signal.SIGKILL  # the fixture counts who is left


def test_children_of_workers_do_not_outlive_the_agent(run: Run) -> None:
    """Even in sessions of their own: what loses its parent becomes the agent's child."""
    source = STAY.replace(
        "time.sleep", "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep"
    )
    launch = run(source)
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


def test_a_fork_server_that_dies_is_replaced_and_workers_go_on(run: Run) -> None:
    launch = run(STAY, "--nproc-per-node=2")
    here = Here(launch)
    workers = {pid for _, pid, _ in here.wait(2)}
    names = ("elastic-forksrv", "elastic-spare")
    waiting = [pid for pid in launch.pids if pid not in workers and command(pid) in names]
    assert waiting
    for pid in waiting:  # the fork server, and the one that it has forked ahead
        os.kill(pid, signal.SIGKILL)
    launch.wait_for(lambda: "another one takes its place" in launch.output, "a new one", within_s=WITHIN_S)
    assert workers <= set(launch.pids)
    os.kill(here.all()[0][1], signal.SIGKILL)
    assert here.wait(3)[2][0] == here.all()[0][0]
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


def test_a_stopped_worker_is_found_killed_and_replaced(run: Run) -> None:
    launch = run(STAY, "--nproc-per-node=2")
    here = Here(launch)
    rank, victim, _ = here.wait(2)[0]
    os.kill(victim, signal.SIGSTOP)
    assert here.wait(3)[2][0] == rank
    assert f"-{victim}-" in launch.output
    assert "its process is stopped" in launch.output
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


def test_a_worker_that_computes_for_ever_shows_its_stacks_before_it_is_killed(run: Run) -> None:
    source = (
        HERE
        + """
import math, struct
def record(phase, limit_s):
    data = struct.pack("<QqIIdd", 1, 12, phase, 1, time.monotonic(), limit_s)
    os.pwrite(int(os.environ["ELASTIC_PROGRESS"]), data, 0)
def endless():
    while True:
        pass
if os.environ["ELASTIC_RESTART"] == "0":
    record(1, 0.5)
    endless()
"""
    )
    launch = run(source)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert "is stuck at step 12: it has computed for" in launch.output
    assert "in endless" in launch.output


BABBLES = """
import os, socket, stat
def babble():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as one:
                    one.type == socket.SOCK_SEQPACKET and one.send(b'{"say": "sings"}')
        except OSError:
            pass
"""
"""To whom a packet may be said from in here: the fork server has one such socket, to its agent."""


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("imports", "why"),
    [
        (
            "import threading as t, time\nt.Thread(target=time.sleep, args=(600,), daemon=True, name='mine').start()",
            "an import starts threads: mine: what script.py does from line 1 on, each worker does afresh",
        ),
        (
            "import os\nif 'elastic-forksrv' in open('/proc/self/comm').read(): os._exit(7)",
            "each worker starts as a fresh interpreter, which takes longer: the fork server ended 3 times",
        ),
        (
            f"{BABBLES}\nif 'elastic-forksrv' in open('/proc/self/comm').read(): babble()",
            "which takes longer: the fork server said what is no message: no known word: 'sings'",
        ),
    ],
    ids=["threads", "death", "babble"],
)
def test_what_cannot_be_forked_from_is_done_by_each_worker_and_the_reason_said(
    run: Run, tmp_path: Path, imports: str, why: str
) -> None:
    (tmp_path / "unfit.py").write_text(imports + "\n")
    launch = run("import unfit\n" + STAY, "--nproc-per-node=2")
    here = Here(launch)
    here.wait(2)
    os.kill(here.all()[0][1], signal.SIGKILL)
    here.wait(3)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert launch.output.count(why) == 1


def test_a_worker_that_starts_again_in_place_is_the_same_worker(run: Run) -> None:
    """As `portable=True` does, to pin the instruction set."""
    source = """
    import os, sys
    if "AGAIN" not in os.environ:
        for name in ("ELASTIC_CHANNEL", "ELASTIC_PROGRESS"):
            os.set_inheritable(int(os.environ[name]), True)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "AGAIN": str(os.getpid())})
    assert os.environ["AGAIN"] == str(os.getpid())
    assert not os.get_inheritable(int(os.environ["ELASTIC_CHANNEL"]))
    raise ValueError("told by " + " ".join(sys.argv[1:]))
    """
    launch = run(source, args=("the", "script"))
    assert launch.finish(within_s=WITHIN_S) == 1
    assert "the same failure twice before its first step: ValueError: told by the script" in launch.output


def test_files_and_marked_lines_are_torchruns(run: Run, tmp_path: Path) -> None:
    source = (
        HERE
        + "sys.stderr.write('to stderr\\n')\n"
        + "if (os.environ['ELASTIC_RESTART'], os.environ['LOCAL_RANK']) == ('0', '1'): time.sleep(600)"
    )
    launch = run(
        source, "--nproc-per-node=2", "--tee=1", "--redirects=2", f"--log-dir={tmp_path / 'logs'}", "--rdzv-id=job7"
    )
    here = Here(launch)
    here.wait(2)
    os.kill(next(pid for rank, pid, _ in here.all() if rank == 1), signal.SIGKILL)
    output = launch.succeed(within_s=WITHIN_S)
    assert output.count("[default0]:here 0") == 1
    assert output.count("[default1]:here 1") == 2
    assert "to stderr" not in output
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("job7_")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.log"))
    assert files == sorted(
        f"attempt_{n}/{r}/{s}.log" for n, r in ((0, 0), (0, 1), (1, 1)) for s in ("stdout", "stderr")
    )
    assert (folder / "attempt_0/0/stderr.log").read_text() == "to stderr\n"


def command(pid: int) -> str:
    """As `ps -o comm` shows it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


assert sys.platform == "linux", "these tests read /proc"

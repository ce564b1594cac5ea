"""`elastic run` with scripts that know nothing of elastic: processes are started, watched, replaced and ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.drill.machine import processes
from elastic.drill.machine.leftovers import Snapshot
from tests.kit.launch import POLL_S, Launch

WITHIN_S = 240.0

HERE = """
import os, sys, time
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
say("here", os.environ["LOCAL_RANK"], os.getpid(), os.environ["ELASTIC_RESTART"])
"""

STAY = HERE + "time.sleep(600)\n"

CLOSES_STDERR = """
import os, sys
os.close(2)
import torch
import elastic
from torch.utils.data import TensorDataset

elastic.seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 2))
with elastic.Run(
    sys.argv[1], model=model, optimizer=optimizer, dataset=data, batch_size=4, virtual_workers=2, epochs=1
) as run:
    for (x,) in run.batches():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
if run.is_coordinator:
    print(run.step_index, "steps")
"""


class Here:
    """Workers say that they are here, with their local rank, pid and how often their place was started before."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def all(self) -> list[tuple[int, int, int]]:
        found = re.findall(r"^(?:\[.*?\]:)?here (\d+) (\d+) (\d+)$", self.launch.output, re.M)
        return [(int(rank), int(pid), int(restart)) for rank, pid, restart in found]

    def wait(self, count: int) -> list[tuple[int, int, int]]:
        self.launch.wait_for(lambda: len(self.all()) >= count, f"{count} workers", within_s=WITHIN_S)
        return self.all()


Run = Callable[..., Launch]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """run(source, *flags, args=[...]): the script of that source under `elastic run`. Nothing may be left of it."""
    launches: list[Launch] = []
    (tmp_path / "tmp").mkdir()
    before = Snapshot.take(tmp_path)
    seen: set[int] = set()
    with contextlib.ExitStack() as stack:

        def start(source: str, *flags: str, args: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Launch:
            script = tmp_path / "script.py"
            script.write_text(textwrap.dedent(source))
            environ = {"TMPDIR": str(tmp_path / "tmp"), **(env or {})}
            launch = Launch("elastic", ["run", *flags, script, *args], env=environ)
            launches.append(stack.enter_context(launch))
            return launch

        yield start
        for launch in launches:
            launch.finish(within_s=WITHIN_S)
            seen.update(launch.pids)
            deadline = time.monotonic() + 10
            while (left := launch.pids) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            assert not left, [processes.describe(pid) for pid in left]
    assert before.new(tmp_path, seen) == []


def test_a_script_without_elastic_simply_runs(run: Run) -> None:
    launch = run(
        HERE + "say('args', *sys.argv[1:], __name__, __file__ == os.path.abspath(sys.argv[0]))",
        "--nproc-per-node=2",
        args=("--lr", "1", "-m"),
    )
    output = launch.succeed(within_s=WITHIN_S)
    assert sorted(rank for rank, _, _ in Here(launch).all()) == [0, 1]
    assert output.count("args --lr 1 -m __main__ True") == 2
    assert "elastic:" not in output


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
            ours = [name for name in late if name.split(".")[0] in ("elastic", "checkpoint", "fsspec")]
            print("imported late:", ours, "coordinator" if run.is_coordinator else "", flush=True)
    """
    launch = run(source, "--nproc-per-node=2", args=(str(tmp_path / "run"),))
    output = launch.succeed(within_s=WITHIN_S)
    assert output.count("imported late: []") == 2
    assert output.count("imported late: [] coordinator") == 1, "who takes over imports nothing either"


def test_what_runs_a_script_loads_little_of_elastic() -> None:
    """A fresh interpreter does before the script's first line, for scripts that never import elastic too; the types of
    elastic/membership/messages/messages.py alone took longer than all the rest."""
    source = "import sys, elastic.launch.processes.worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("elastic.membership.")] == [
        "elastic.membership.messages",
        "elastic.membership.messages.wire",
        "elastic.membership.messages.failure",
        "elastic.membership.progress",
    ]
    assert "torch" not in loaded


def test_kills_from_outside_never_count(run: Run) -> None:
    """--max-restarts bounds what repeats by itself; spot machines may take a worker a hundred times."""
    launch = run(STAY, "--max-restarts=0")
    here = Here(launch)
    for count in range(1, 6):
        os.kill(here.wait(count)[-1][1], signal.SIGKILL)
    here.wait(6)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


def test_forked_workers_are_like_fresh_ones(run: Run) -> None:
    """Random streams, session, parent, standard input, environment and descriptors, none of them the warm process's."""
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
say("ranks", sorted(name for name in os.environ if name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")))
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
    assert output.count("ranks []") == 2
    assert output.count("threads 1 2") == 2


def test_an_exception_that_repeats_is_shown_once_and_ends_the_run(run: Run) -> None:
    launch = run(HERE + "raise ValueError(f'no good {1 + 1}')", "--nproc-per-node=2")
    assert launch.finish(within_s=WITHIN_S) == 1
    assert launch.output.count("Traceback (most recent call last)") == 1
    assert 'script.py", line' in launch.output
    assert "elastic/launch" not in launch.output
    assert "the same failure twice before its first step: ValueError: no good 2" in launch.output
    assert "(local rank" in launch.output


def test_an_exception_in_a_log_file_is_shown_once_with_the_file(run: Run, tmp_path: Path) -> None:
    launch = run(HERE + "raise ValueError('no good')", "--redirects=3", f"--log-dir={tmp_path / 'logs'}")
    assert launch.finish(within_s=WITHIN_S) == 1
    assert launch.output.count("Traceback (most recent call last)") == 1
    (file,) = set(re.findall(r"log  (\S+attempt_0/0/stderr\.log)", launch.output))
    assert "ValueError: no good" in Path(file).read_text()


def test_a_first_failure_is_forgiven(run: Run, tmp_path: Path) -> None:
    source = HERE + "if os.environ['ELASTIC_RESTART'] == '0': raise OSError('the disk was busy')"
    launch = run(source)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert [restart for _, _, restart in Here(launch).all()] == [0, 1]


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 1, "exit status 3"),
        ("sys.exit('a reason')", 1, "a reason"),
        ("os.abort()", 1, "SIGABRT"),
        ("this is no python", 1, "SyntaxError"),
        ("import no_such_module", 1, "ModuleNotFoundError"),
    ],
)
def test_the_exit_status_says_how_the_workers_ended(run: Run, end: str, status: int, said: str) -> None:
    launch = run(HERE + end)
    assert launch.finish(within_s=WITHIN_S) == status, launch.output
    assert said in launch.output


def test_a_worker_ends_like_a_python_program(run: Run, tmp_path: Path) -> None:
    """atexit functions run, threads are joined, files that nobody closed are flushed."""
    source = f"""
    import atexit, pickle, threading, time, multiprocessing
    folder = {str(tmp_path)!r}
    class Mine:
        pass
    def child(thing, queue):
        queue.put(type(thing).__name__)
    def late():
        time.sleep(0.3)
        pickle.loads(pickle.dumps(Mine()))
        open(folder + "/thread", "w").write("joined")
    atexit.register(lambda: open(folder + "/atexit", "w").write("ran"))
    threading.Thread(target=late).start()
    queue = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=child, args=(Mine(), queue))
    process.start()
    assert queue.get() == "Mine"
    process.join()
    unclosed = open(folder + "/file", "w")
    unclosed.write("flushed")
    """
    run(source).succeed(within_s=WITHIN_S)
    assert [(tmp_path / name).read_text() for name in ("thread", "atexit", "file")] == ["joined", "ran", "flushed"]


def test_a_module_runs_as_python_m_would(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "near.py").write_text("word = 'near'\n")
    (tmp_path / "pack" / "go.py").write_text(
        "import sys\nfrom .near import word\nprint(word, __name__, __spec__.name, sys.argv[1:])\n"
    )
    flags = ["run", "-m", "pack.go", "a", "--b"]
    with Launch("elastic", flags, env={"PYTHONPATH": str(tmp_path)}) as launch:
        assert "near __main__ pack.go ['a', '--b']" in launch.succeed(within_s=WITHIN_S)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_runs(closed: str, tmp_path: Path) -> None:
    """It ended in an AttributeError that nobody saw."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import os\nos.write(1, b'')\nopen({str(tmp_path)!r} + '/' + os.environ['LOCAL_RANK'], 'w').close()\n"
    )
    command = f"exec {sys.executable} -m elastic run --standalone --nproc-per-node=2 {script} {closed}"
    assert subprocess.run(["sh", "-c", command], check=False, timeout=WITHIN_S).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}


def test_workers_that_write_to_one_pipe_write_whole_lines(run: Run) -> None:
    """Unbuffered, as images for containers have it, print() writes piece by piece, in the midst of another's line."""
    source = """
        import os
        for number in range(500):
            print("line", number, "of", os.environ["LOCAL_RANK"])
    """
    output = run(source, "--nproc-per-node=4", "--start-method=spawn").succeed(within_s=WITHIN_S)
    lines = [line for line in output.splitlines() if line.startswith("line")]
    assert sorted(lines) == sorted(f"line {number} of {rank}" for number in range(500) for rank in range(4))


def test_a_script_that_has_closed_stderr_trains(tmp_path: Path) -> None:
    """The next descriptor was the way to its agent, which was sent what was said to people, and killed the worker."""
    script = tmp_path / "script.py"
    script.write_text(CLOSES_STDERR)
    command = [sys.executable, "-m", "elastic", "run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*command, str(tmp_path / "run")], check=False, timeout=WITHIN_S, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "8 steps\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_notice_to_the_agent_ends_everything_with_status_0(run: Run, number: signal.Signals) -> None:
    launch = run(STAY, "--nproc-per-node=2")
    Here(launch).wait(2)
    launch.send(number)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert f"{number.name}: the 2 workers of this node leave" in launch.output


def test_a_notice_during_the_start_ends_everything_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(f"import time\nopen({str(tmp_path / 'began')!r}, 'w')\ntime.sleep(600)\n")
    launch = run("import slow_import")
    launch.wait_for((tmp_path / "began").exists, "the warm process's imports", within_s=WITHIN_S)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_notice_to_a_node_that_waits_for_others_is_a_leave_too(
    run: Run, tmp_path: Path, number: signal.Signals
) -> None:
    """Of its own with -15, it would pass --leave-status by, and the scheduler would not start it again."""
    hook = f"--on-notice=echo $ELASTIC_NOTICE_SOURCE >> {tmp_path / 'told'}"
    launch = run(STAY, *meet("2:2"), "--leave-status=75", hook)
    launch.wait_for(lambda: "waiting at" in launch.output, "a node that waits for another", within_s=WITHIN_S)
    launch.send(number)
    assert launch.finish(within_s=WITHIN_S) == 75, launch.output
    assert f"this node has left ({number.name}) before it was in the run" in launch.output
    assert (tmp_path / "told").read_text() == f"{number.name}\n"


def test_a_hook_is_called_for_a_signal_and_has_time_after_the_workers_have_left(run: Run, tmp_path: Path) -> None:
    """To order a machine takes seconds, and workers leave within a step."""
    hook = f"echo $ELASTIC_NOTICE_SOURCE >> {tmp_path / 'told'}; while ! test -e {tmp_path / 'go'}; do sleep 0.05; done"
    launch = run(STAY, f"--on-notice={hook}; echo ordered >> {tmp_path / 'told'}")
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    launch.send(signal.SIGTERM)  # as Slurm does
    launch.wait_for(lambda: "waiting for --on-notice to end, 60 s" in launch.output, "a wait for it", within_s=WITHIN_S)
    (tmp_path / "go").touch()
    assert launch.finish(within_s=WITHIN_S) == 0
    assert (tmp_path / "told").read_text() == "SIGTERM\nordered\n"


def test_a_hook_that_does_not_end_has_until_the_machine_goes(run: Run) -> None:
    launch = run(STAY, "--on-notice=sleep 600", env={"ELASTIC_GRACE_S": "3"})
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert "waiting for --on-notice to end" in launch.output


def test_a_hook_that_fails_is_said(run: Run) -> None:
    launch = run(STAY, "--on-notice=exit 3")
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert "--on-notice ended with exit status 3; the node acts on the notice all the same" in launch.output


def test_a_second_ctrl_c_ends_at_once(run: Run) -> None:
    source = STAY.replace(
        "time.sleep(600)", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); say('deaf'); time.sleep(600)"
    )
    launch = run(source)
    launch.wait_for(lambda: "deaf" in launch.output, "a worker that ignores SIGTERM", within_s=WITHIN_S)
    launch.send(signal.SIGINT)
    launch.wait_for(lambda: "leave" in launch.output, "the notice", within_s=WITHIN_S)
    time.sleep(0.6)  # what tells a second wish from an echo is half a second; no event marks it
    launch.send(signal.SIGINT)
    assert launch.finish(within_s=WITHIN_S) == 130
    assert "interrupted twice" in launch.output


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


def test_a_warm_process_that_dies_is_replaced_and_workers_go_on(run: Run) -> None:
    launch = run(STAY, "--nproc-per-node=2")
    here = Here(launch)
    workers = {pid for _, pid, _ in here.wait(2)}
    waiting = [pid for pid in launch.pids if pid not in workers and command(pid) in ("elastic-warm", "elastic-spare")]
    assert waiting
    for pid in waiting:  # the warm process, and the one that it has forked ahead
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
"""To whom a packet may be said from in here: the warm process has one such socket, to its agent."""


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("imports", "why"),
    [
        (
            "import threading as t, time\nt.Thread(target=time.sleep, args=(600,), daemon=True, name='mine').start()",
            "an import starts threads: mine: what script.py does from line 1 on, each worker does afresh",
        ),
        (
            "import os\nif 'elastic-warm' in open('/proc/self/comm').read(): os._exit(7)",
            "each worker starts as a fresh interpreter, which takes longer: the warm process ended 3 times",
        ),
        (
            f"{BABBLES}\nif 'elastic-warm' in open('/proc/self/comm').read(): babble()",
            "which takes longer: the warm process said what is no message: no known word: 'sings'",
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


def test_fresh_interpreters_are_had_for_the_asking(run: Run) -> None:
    launch = run(HERE + "raise KeyError('x')", "--start-method=spawn")
    assert launch.finish(within_s=WITHIN_S) == 1
    assert launch.output.count("Traceback (most recent call last)") == 1
    assert "elastic/launch" not in launch.output
    assert "each worker starts" not in launch.output


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


@pytest.mark.nightly
def test_an_agent_holds_no_more_after_many_replacements_than_before(run: Run) -> None:
    launch = run(STAY, "--nproc-per-node=2")
    here = Here(launch)
    here.wait(2)
    settle(launch)
    before = descriptors(launch.process.pid)
    for count in range(3, 23):
        os.kill(here.all()[-1][1], signal.SIGKILL)
        here.wait(count)
    settle(launch)
    assert descriptors(launch.process.pid) == before
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


@pytest.mark.nightly(sample=1, of="two agents")
def test_nodes_meet_and_a_later_one_joins_without_a_restart(run: Run) -> None:
    flags = meet("1:3")
    first = run(STAY, *flags, "--nproc-per-node=2")
    Here(first).wait(2)
    second = run(STAY, *flags, "--nproc-per-node=2")
    Here(second).wait(2)
    assert len(Here(first).all()) == 2
    second.send(signal.SIGTERM)
    assert second.finish(within_s=WITHIN_S) == 0
    assert len(first.pids) >= 3
    third = run(HERE, *flags)
    assert third.process.poll() is None
    Here(third).wait(1)
    first.send(signal.SIGTERM)
    assert first.finish(within_s=WITHIN_S) == 0


@pytest.mark.nightly(sample=1, of="two agents")
def test_a_node_too_many_waits_for_a_place_and_says_by_its_status_that_none_came(run: Run) -> None:
    """An autoscaler takes 0 for success. What a node has started when it hears that the run is full ends at once."""
    flags = meet("1:2")
    first, second = run(STAY, *flags), run(STAY, *flags)
    for node in (first, second):
        Here(node).wait(1)
    refused = run(STAY, *flags, "--rdzv-conf=join_timeout=2")
    assert refused.finish(within_s=WITHIN_S) == 75, refused.output
    assert "the run has its 2 nodes already: this node waits for a place, 2 s at most" in refused.output
    assert "try again later (exit status 75)" in refused.output
    waits = run(STAY, *flags)
    waits.wait_for(lambda: "this node waits for a place" in waits.output, "a refusal", within_s=WITHIN_S)
    second.send(signal.SIGTERM)
    assert second.finish(within_s=WITHIN_S) == 0
    joined = Here(waits)
    waits.wait_for(lambda: any(restart == 1 for _, _, restart in joined.all()), "a place", within_s=WITHIN_S)
    for node in (waits, first):
        node.send(signal.SIGTERM)
        assert node.finish(within_s=WITHIN_S) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["is killed", "hands over"])
def test_the_hub_moves_to_the_node_that_is_left(run: Run, how: signal.Signals) -> None:
    """Twice, so that the first of two nodes goes once, and the second: one of them has the hub."""
    for goes in (0, 1):
        flags = meet("1:2")
        nodes = [run(STAY, *flags), run(STAY, *flags)]
        for node in nodes:
            Here(node).wait(1)
        nodes[goes].send(how)
        if how == signal.SIGTERM:
            assert nodes[goes].finish(within_s=WITHIN_S) == 0
        left = nodes[1 - goes]
        ((_, worker, _),) = Here(left).all()
        os.kill(worker, signal.SIGKILL)
        assert Here(left).wait(2)[1][0] == 0  # only the hub orders a replacement
        left.send(signal.SIGTERM)
        status = left.finish(within_s=WITHIN_S)
        assert status == 0 or how == signal.SIGKILL  # a hub that lost a node, and went on with nothing since, failed


@pytest.mark.nightly(sample=1, of="two agents")
@pytest.mark.parametrize("when", ["after torch's round", "inside of it"])
def test_nodes_meet_again_where_the_first_is_lost_before_anybody_knows_its_hub(
    run: Run, tmp_path: Path, when: str
) -> None:
    """They waited for it for ten minutes and ended with 1. What was to have the hub is played here by a node that ends
    once all have met; the machine that replaces it comes later."""
    conf = "keep_alive_interval=1,keep_alive_max_attempt=2,join_timeout=120,read_timeout=5"
    flags = [*meet("3:3"), f"--rdzv-conf={conf}"]
    endpoint = flags[2].partition("=")[2]
    nodes = [run(STAY, *flags), run(STAY, *flags)]
    for node in nodes:
        says(node, f"waiting at {endpoint}")
    is_lost = tmp_path / "lost.py"
    is_lost.write_text(textwrap.dedent(IS_LOST_ONCE_ALL_HAVE_MET))
    subprocess.run([sys.executable, is_lost, endpoint, when], check=True, timeout=WITHIN_S)
    for node in nodes:
        says(node, "those who are left meet again")
    nodes.append(run(STAY, *flags))
    for node in nodes:
        Here(node).wait(1)
    for node in nodes:
        node.send(signal.SIGTERM)
    assert [node.finish(within_s=WITHIN_S) for node in nodes] == [0, 0, 0]


def test_a_range_with_one_port_for_two_is_refused_before_anybody_relies_on_the_node(run: Run) -> None:
    """The port for its claim was sought when it became the hub: it died in the middle of a takeover, and the run lost
    a second hub to the first one's loss."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = run(STAY, *meet("1:2"), f"--port-range={port}-{port}")
    assert launch.finish(within_s=WITHIN_S) == 2, launch.output
    assert f"--port-range={port}-{port}: all addresses: no port of the range is free" in launch.output
    assert "an agent takes two ports" in launch.output


def test_a_node_alone_says_who_is_missing(run: Run) -> None:
    """A slow machine may need more than the three seconds to be at the rendezvous itself, and says that, too."""
    launch = run(STAY, *meet("2:2"), "--rdzv-conf=join_timeout=3")
    assert launch.finish(within_s=WITHIN_S) == 1
    assert "did not meet within 3 s" in launch.output
    assert "at least 2 are needed" in launch.output
    assert "1 nodes: " in launch.output or "nobody, not even this node yet" in launch.output


IS_LOST_ONCE_ALL_HAVE_MET = """
    import os, sys
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousStoreInfo
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
    first = "0.0.0.0"  # in the order of their addresses
    conf = {"keep_alive_interval": 1, "keep_alive_max_attempt": 2}
    params = RendezvousParameters("c10d", sys.argv[1], "meeting", 3, 3, first, is_host=0, **conf)
    backend, store = create_backend(params)
    if sys.argv[2] == "inside of it":
        RendezvousStoreInfo.build = lambda *args, **facts: os._exit(0)  # what the others wait for in the store
    info = create_handler(store, backend, params).next_rendezvous()
    assert info.rank == 0
    os._exit(0)
"""


def says(launch: Launch, what: str) -> None:
    launch.wait_for(lambda: what in launch.output, what, within_s=WITHIN_S)


def meet(nodes: str) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=meeting"]


def command(pid: int) -> str:
    """As `ps -o comm` shows it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def settle(launch: Launch) -> None:
    """Until a process is forked ahead again: the warm process, it, and the two workers."""
    launch.wait_for(lambda: len(launch.pids) == 5, "a spare process", within_s=WITHIN_S)
    time.sleep(0.2)


assert sys.platform == "linux", "these tests read /proc"

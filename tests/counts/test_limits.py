"""Limits of the kernel's, and processes that stand still: a run trains through, or ends with one error that says why.

`ulimit -u` leaves a user no further process or thread, a control group no more memory, and SIGSTOP halts each process
of a run in turn for longer than the hang limit. None of them may hold a run for ever. `make counts STOPS=5` halts each
kind five times.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from elastic.drill.machine import processes
from elastic_checkpoint import Checkpointer, digest, linux
from tests.kit.launch import Launch
from tests.kit.sampling import NIGHTLY, ROTATION, sampled

pytestmark = pytest.mark.nightly(sample=3, of="counts")

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STOPS = int(os.environ.get("STOPS") or 1)
HANG_S = 6.0
STEPS, LONG = 12, 400
KINDS = ("elastic-spare", "elastic-forksrv", "elastic-worker", "pt_data_worker", "python", "writer")
"""Of a run's processes; the agent is called as its interpreter."""
WITHIN_S = 240.0
USER = 54321  # of nobody: the kernel counts the processes of a user, and root's it does not
ITSELF_ALONE = 2  # the agent, and a thread of its
GROUPS = Path("/sys/fs/cgroup")
WHY_NOT = {
    "processes": r"Resource temporarily unavailable|can't start new thread|no more processes",
    "memory": r"memory",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """For anybody: pytest's own are root's alone."""
    made = Path(tempfile.mkdtemp(prefix="limits-")).resolve()
    made.chmod(0o777)
    yield made
    processes.kill_marked(made)
    processes.wait_until_gone(made, within_s=WITHIN_S)
    shutil.rmtree(made)


def run(folder: Path, steps: int, limited: Sequence[str]) -> tuple[int, str]:
    """`elastic run` behind a command that limits it: its status, and what it said. Nothing of it may be left."""
    environ = {**os.environ, processes.MARK: str(folder), "TMPDIR": str(folder), "ELASTIC_RESCUE": str(folder)}
    of_run = ["run", "--standalone", "--nproc-per-node=2", f"--hang-limit={HANG_S}", "--max-restarts=3"]
    of_script = [PROGRAM, folder / "run", f"--steps={steps}", "--num-workers=1"]
    with (folder / "output").open("w+b") as output:
        command = [*limited, sys.executable, "-m", "elastic", *of_run, *map(str, of_script)]
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=output, stderr=output)
        try:
            status = process.wait(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            running = "\n".join(map(processes.describe, processes.marked(folder)))
            process.kill()
            process.wait()
            pytest.fail(f"not ended within {WITHIN_S} s\n{running}\n{(folder / 'output').read_text()[-6000:]}")
    said = (folder / "output").read_text(errors="replace")
    left = processes.wait_until_gone(folder, within_s=60)
    assert left == [], "\n".join([*map(processes.describe, left), said])
    return status, said


def weights(url: Path, steps: int) -> str:
    with Checkpointer(url) as runs:
        found = runs.read()
    assert found.step == steps
    return digest(found.tree["model"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """undisturbed(steps): the weights of one worker that nobody limits."""
    known: dict[int, str] = {}

    def of(steps: int) -> str:
        if steps not in known:
            url = tmp_path_factory.mktemp("undisturbed") / "run"
            with Launch("tests.kit.programs.small", [url, f"--steps={steps}"]) as alone:
                alone.succeed(within_s=WITHIN_S)
            known[steps] = weights(url, steps)
        return known[steps]

    return of


def judge(folder: Path, status: int, said: str, of: str, undisturbed: str) -> str:
    """What became of it, in a word: it was trained through, or it says why not."""
    if status == 0:
        assert weights(folder / "run", STEPS) == undisturbed, said
        return "trained through"
    assert status > 0 or (of == "memory" and status == -signal.SIGKILL), f"status {status}\n{said}"
    if status > 0:
        assert re.search(WHY_NOT[of], said), said
    return f"status {status}"


@pytest.mark.parametrize("limit", [ITSELF_ALONE, 8, 14, 20, 26, 30, 34, 38, 44, 60])
def test_a_user_who_may_have_no_further_process_is_told_so(
    folder: Path, undisturbed: Callable[[int], str], limit: int
) -> None:
    """It counts threads, too. A run of two workers with a loader process each has some 35."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv (util-linux), to be another user")
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    reads_all = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]  # an interpreter may lie below /root
    limited = [*user, *reads_all, "bash", "-c", f'ulimit -u {limit}; exec "$@"', "bash"]
    status, said = run(folder, STEPS, limited)
    found = judge(folder, status, said, "processes", undisturbed(STEPS))
    if limit == ITSELF_ALONE:
        assert "elastic run: no further process or thread could be started: " in said
        assert "Traceback" not in said
    print(f"ulimit -u {limit}: {found}", flush=True)


@pytest.fixture
def group() -> Iterator[Callable[[int], list[str]]]:
    """group(bytes): a command that begins what follows it in a control group of so much memory."""
    v1, v2 = GROUPS / "memory", GROUPS
    name = f"elastic-limits-{secrets.token_hex(4)}"
    made, file = (v1 / name, "memory.limit_in_bytes") if v1.is_dir() else (v2 / name, "memory.max")
    try:
        made.mkdir()
        (made / file).write_text(str(1 << 40))
    except OSError as refused:
        with contextlib.suppress(OSError):
            made.rmdir()
        pytest.skip(f"needs a control group of its own, with its memory limited (root, cgroup v1 or v2): {refused}")

    def of(most: int) -> list[str]:
        (made / file).write_text(str(most))
        return ["sh", "-c", f'echo $$ >{made}/cgroup.procs && exec "$@"', "sh"]

    yield of
    deadline = time.monotonic() + WITHIN_S
    while made.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # those who have ended are taken out of it in a moment
            made.rmdir()
        time.sleep(0.1)


@pytest.mark.parametrize("mib", [60, 120, 200, 300, 350, 400, 600, 2000])
def test_a_run_that_gets_no_more_memory_ends_and_says_so(
    folder: Path, undisturbed: Callable[[int], str], group: Callable[[int], list[str]], mib: int
) -> None:
    """Where the kernel takes the agent itself, nobody is left to say it: then its status does."""
    status, said = run(folder, STEPS, group(mib << 20))
    print(f"{mib} MiB: {judge(folder, status, said, 'memory', undisturbed(STEPS))}", flush=True)


def kind(pid: int) -> str | None:
    """What a process of a run is for; None: it has ended."""
    stat, command = linux.process_stat(pid), linux.command_line(pid)
    return None if stat is None else "writer" if processes.WRITER in command else stat.name


def test_each_process_that_stands_still_for_a_while_costs_no_bit(
    tmp_path: Path, undisturbed: Callable[[int], str]
) -> None:
    """SIGSTOP, and SIGCONT once the hang limit has passed twice: its work was done by others, or waits."""
    hurry, stopped = tmp_path / "hurry", Counter[str]()
    script = [PROGRAM, tmp_path / "run", f"--steps={LONG}", "--num-workers=1", f"--slow-until={hurry}"]
    options = ["--standalone", "--nproc-per-node=2", f"--hang-limit={HANG_S}", "--max-restarts=1000"]
    with Launch("elastic", ["run", *options, *script]) as launch:

        def goes_on() -> None:
            since = len(launch.output)
            launch.wait_for(
                lambda: re.search(r"step \d+ loss", launch.output[since:]) is not None,
                f"a step after {dict(stopped)}", within_s=WITHIN_S,
            )  # fmt: skip

        for _ in range(STOPS):
            goes_on()
            time.sleep(5)  # a coordinator that has trained for two seconds starts a writer
            done = set[str]() if NIGHTLY else {*KINDS} - {*sampled(KINDS, 2, ROTATION)}
            while left := {name: pid for pid in launch.pids if (name := kind(pid)) and name not in done}:
                name, pid = next(iter(sorted(left.items())))
                done.add(name)
                linux.send_signal(pid, signal.SIGSTOP)
                time.sleep(2 * HANG_S)
                linux.send_signal(pid, signal.SIGCONT)
                stopped[name] += 1
                goes_on()
        hurry.touch()
        launch.succeed(within_s=WITHIN_S)
    print(f"stood still for {2 * HANG_S:g} s: {dict(stopped)}", flush=True)
    assert weights(tmp_path / "run", LONG) == undisturbed(LONG)

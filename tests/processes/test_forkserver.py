"""What tests fork ends with them, however they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.kit import forkserver

ROOT = Path(__file__).parents[2]
WITHIN_S = 120.0
OWNER = """
import os, sys, time
from pathlib import Path
from tests.kit import forkserver
folder = Path(sys.argv[1])
(folder / "program.py").write_text("import time; time.sleep(3600)")
with (folder / "output").open("wb") as output:
    command = [sys.executable, "-m", "elastic", "run", "--standalone", str(folder / "program.py")]
    env = {**os.environ, "ELASTIC_DRILL": str(folder)}
    program = forkserver.start(command, env=env, cwd=folder, output=output.fileno())
print(program.pid, flush=True)
time.sleep(3600)
"""


def test_a_program_ends_though_what_started_it_was_killed_outright(tmp_path: Path) -> None:
    """pytest under `timeout -k` left the launches of the tests that it was at, for ever."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        program = psutil.Process(int(owner.stdout.readline()))
        assert "forkserver_process" in " ".join(program.cmdline())
        owner.kill()
    deadline = time.monotonic() + WITHIN_S
    while program.is_running() and program.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it outlived its test"
        time.sleep(0.05)


SAYS = """
import os, sys, time
print("worker", os.getpid(), os.getppid(), os.getsid(0), os.environ["RANK"], sys.argv[1:], flush=True)
if sys.argv[1:] == ["fails"] and os.environ["RANK"] == "1":
    os._exit(7)
time.sleep(3600)
"""


def test_torchrun_is_its_forked_workers_parent_and_hears_their_exit_status(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    workers = ["--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    with (tmp_path / "output").open("wb") as output:
        command = [sys.executable, "-m", "torch.distributed.run", *workers, str(tmp_path / "says.py"), "fails"]
        torchrun = forkserver.start(command, env=dict(os.environ), cwd=tmp_path, output=output.fileno())
    assert torchrun.wait(WITHIN_S) == 1
    said = (tmp_path / "output").read_text()
    found = [line.split()[1:] for line in said.splitlines() if line.startswith("worker")]
    assert sorted(rank for _, _, _, rank, _ in found) == ["0", "1"]
    for pid, parent, session, _, argv in found:
        assert (int(parent), session, argv) == (torchrun.pid, pid, "['fails']")
        assert not psutil.pid_exists(int(pid))
    assert "exitcode  : 7" in said


def test_what_forks_a_torchrun_s_workers_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    with (tmp_path / "output").open("wb") as output:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(tmp_path / "says.py")]
        torchrun = forkserver.start(command, env=dict(os.environ), cwd=tmp_path, output=output.fileno())
    deadline = time.monotonic() + WITHIN_S
    while "worker" not in (tmp_path / "output").read_text():
        assert time.monotonic() < deadline, "no worker began"
        time.sleep(0.05)
    children = psutil.Process(torchrun.pid).children()
    (server,) = [child for child in children if child.name() == "tests-forks"]
    (worker,) = [child for child in children if child != server]
    assert "forkserver_process" in " ".join(worker.cmdline())
    torchrun.kill()
    torchrun.wait(WITHIN_S)
    server.wait(WITHIN_S)
    worker.kill()  # in a session of its own, it outlives its torchrun
    worker.wait(WITHIN_S)

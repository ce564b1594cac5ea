"""What tests fork ends with them, however they end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

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

"""A signal to leave that comes while `elastic run` is hardly begun: kept until it can be acted on, and not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic.drill.hosts.hosts import missing
from elastic.drill.hosts.network import until
from elastic_checkpoint import linux
from tests.kit.agents import WITHIN_S
from tests.kit.host_runs import ROOT

pytestmark = pytest.mark.nightly(sample=1, of="early signals")

PROCESS_1 = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def begun_anew(pid: int) -> bool:
    """Whether it has become the process whose strings hash alike, a moment ago: nothing of ours is imported there."""
    return b"\0PYTHONHASHSEED=0\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("first", [False, True], ids=["any process", "process 1"])
def test_a_node_that_is_drained_as_it_starts_leaves_in_order(tmp_path: Path, first: bool) -> None:
    """The kernel drops what process 1 of a container does not handle: such a pod trained on until it was killed, at
    the end of its grace."""
    if first and (why := missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    script = tmp_path / "train.py"
    script.write_text(f"import time\ntime.sleep({WITHIN_S})\n")
    command = [sys.executable, "-m", "elastic", "run", "--leave-status=75", str(script)]
    random = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    process = subprocess.Popen([*PROCESS_1, *command] if first else command, cwd=ROOT, env=random)
    try:
        if first:
            until(lambda: linux.children(process.pid), "process 1", within_s=WITHIN_S)
        pid = next(iter(linux.children(process.pid))) if first else process.pid
        deadline = time.monotonic() + WITHIN_S
        while not begun_anew(pid):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(pid, signal.SIGTERM)
        assert process.wait(WITHIN_S) == 75
    finally:
        process.kill()
        process.wait()

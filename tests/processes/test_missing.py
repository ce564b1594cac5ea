"""An error names who is missing: of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from elastic.membership.view import View
from elastic.membership.worker.missing import missing, sentence


def test_dead_and_stopped_workers_of_this_host_are_named_and_healthy_ones_are_not() -> None:
    """Real processes: one that lives, one that was stopped, one that was killed and is not reaped yet."""
    stopped, killed = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2))
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        workers = (f"node-a-{os.getpid()}-aa", f"node-a-{stopped.pid}-bb", f"node-a-{killed.pid}-cc")
        view = View(generation=0, workers=workers)
        found = missing(view, host="node-a")
        assert found == {1: "stopped", 2: "dead"}
        assert f"rank 2 (node-a-{killed.pid}-cc) is dead" in sentence(view, found, own_rank=0)
    finally:
        for process in (stopped, killed):
            process.kill()
            process.wait()

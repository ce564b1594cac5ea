"""An error that names who is missing saves the person on call a search over all logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from elastic.membership.missing import missing, sentence
from elastic.membership.view import View


def view_of(*workers: str) -> View:
    return View(generation=0, workers=workers)


def test_dead_and_stopped_workers_of_this_host_are_named_and_healthy_ones_are_not() -> None:
    """Real processes: one that lives, one that was stopped, one that was killed and is not reaped yet."""
    stopped, killed = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2))
    try:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        view = view_of(f"node-a-{os.getpid()}-aa", f"node-a-{stopped.pid}-bb", f"node-a-{killed.pid}-cc")
        found = missing(view, host="node-a")
        assert found == {1: "stopped", 2: "dead"}
        assert f"rank 2 (node-a-{killed.pid}-cc) is dead" in sentence(view, found, own_rank=0)
    finally:
        for process in (stopped, killed):
            process.kill()
            process.wait()


def test_of_other_machines_only_their_names_are_said(tmp_path: Path) -> None:
    """A process id means nothing on another host, whatever runs under it here."""
    view = view_of("node-a-1-aa", "node-b-999999-bb")
    assert missing(view, host="node-c") == {}
    assert sentence(view, {}, own_rank=0).endswith("look at the logs of node-b")


def test_without_a_proc_file_system_nobody_is_accused(tmp_path: Path) -> None:
    """macOS has none; "dead" must be proof and never a guess."""
    assert missing(view_of("node-a-999999-aa"), host="node-a", proc=tmp_path) == {}

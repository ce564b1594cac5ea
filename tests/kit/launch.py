"""Runs a module of the tests as real processes, alone or under torchrun, and ends all of them by a deadline.

Everything that a launch starts carries the drill's mark, torchrun's workers in their own sessions too, so `close` finds
whatever is left. For a training script under faults there is elastic.drill.cluster; this is for the other programs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from elastic.drill.machine import processes
from elastic.membership.environment import NOTICES
from tests.kit import forkserver

OUTPUT_SHOWN = 6000  # characters, in an error
POLL_S = 0.02
ROOT = Path(__file__).parents[2]


class Launch:
    """One started program. `with` ends it, and then its output is gone.

    module   as for `python -m`
    workers  under torchrun; None: a process of its own
    """

    def __init__(
        self,
        module: str,
        args: Sequence[object] = (),
        *,
        workers: int | None = None,
        torchrun: Sequence[str] = ("--standalone", "--max-restarts=0"),
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="launch-")).resolve()
        launcher = ["-m", "torch.distributed.run", *torchrun, f"--nproc-per-node={workers}"] if workers else []
        command = [sys.executable, *launcher, "-m", module, *map(str, args)]
        marked = {processes.MARK: str(self._folder), "TMPDIR": str(self._folder), "PYTHONUNBUFFERED": "1"}
        marked[NOTICES] = "none"  # of the cloud that runs the tests
        with (self._folder / "output").open("wb") as output:
            environ = {**os.environ, **marked, **(env or {})}
            self.process = forkserver.start(command, env=environ, cwd=cwd, output=output.fileno())

    @property
    def output(self) -> str:
        """Both streams, so far."""
        return (self._folder / "output").read_text(errors="replace")

    @property
    def pids(self) -> list[int]:
        return processes.marked(self._folder)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for(self, holds: Callable[[], bool], what: str, *, within_s: float) -> None:
        """Returns when `holds` does; fails when the program ended or the deadline passed before."""
        deadline = time.monotonic() + within_s
        while not holds():
            ended = self.process.poll()
            assert ended is None, f"the program ended ({ended}) before {what}\n{self.output[-OUTPUT_SHOWN:]}"
            assert time.monotonic() < deadline, f"no {what} within {within_s} s\n{self.output[-OUTPUT_SHOWN:]}"
            time.sleep(POLL_S)

    def finish(self, *, within_s: float) -> int:
        """The exit status; negative: the signal that ended it."""
        try:
            return self.process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            running = "\n".join(map(processes.describe, self.pids))
            raise AssertionError(f"not ended within {within_s} s\n{running}\n{self.output[-OUTPUT_SHOWN:]}") from None

    def succeed(self, *, within_s: float) -> str:
        """Waits for its end with status 0; returns what it printed."""
        status = self.finish(within_s=within_s)
        assert status == 0, f"exit status {status}\n{self.output[-OUTPUT_SHOWN:]}"
        return self.output

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes.kill_marked(self._folder)
        self.process.wait(timeout=10)
        shutil.rmtree(self._folder)

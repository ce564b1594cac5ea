"""A run that is hurt on purpose and watched through its events. It leaves no process and no file, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elastic.drill.machine.processes import MARK, kill_marked, wait_until_gone
from tests.benchmarks.recovery_events import Events, View

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("recovery_script.py")
IMPORTS = Path(__file__).with_name("recovery_imports_script.py")
ELASTIC = (sys.executable, "-m", "elastic", "run", "--max-restarts=1000000")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1000000")
_LOOK_S = 0.03  # rarely: the processors belong to the run
_WAIT_S = 90.0
_ORDERLY_S = 30.0


class Stuck(Exception):
    """The run did not get where a fault should have left it; says what its log says last."""


class Watched:
    """What `running` gives."""

    def __init__(self, folder: Path, environ: dict[str, str], script: Path) -> None:
        self.folder = folder
        self._script = script
        self.events = Events(folder / "run")
        self._environ = environ
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, launcher: list[str], arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*launcher, str(self._script), str(self.folder / "run"), *arguments],
                cwd=self.folder,
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            self.events.read()
            if holds():
                return
            if self._processes[0].poll() is not None:
                raise Stuck(f"the run ended with {self._processes[0].returncode} before {what}\n{self._log()}")
            if time.monotonic() > deadline:
                self._show_stacks()
                raise Stuck(f"not within {_WAIT_S:.0f} s: {what}\n{self._log()}")
            time.sleep(_LOOK_S)

    def settled(self, workers: int, *, steps: int, later_than: View | None = None) -> View:
        """Waits until so many workers have applied so many steps in one view."""

        def holds() -> bool:
            view = self.events.newest_view()
            late = later_than is None or view.key > later_than.key
            return late and len(view.workers) == workers and view.steps >= steps

        self.wait(holds, f"{workers} workers had taken {steps} steps")
        return self.events.newest_view()

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Told to leave, it saves and goes; what does not go in time is killed by `running`."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            process.send_signal(signal.SIGTERM)
            process.wait(_ORDERLY_S)

    def end_all(self) -> None:
        for process in self._processes:
            self.end(process)

    def reap(self) -> None:
        for process in self._processes:
            process.wait(_ORDERLY_S)

    def _show_stacks(self) -> None:
        """A worker of `elastic run` prints them on SIGUSR2."""
        for worker in self.events.newest_view().workers:
            with suppress(ProcessLookupError):
                strike(worker, signal.SIGUSR2)
        time.sleep(1.0)

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-12_000:]


@contextmanager
def running(
    launcher: list[str], arguments: list[str], *, observed: bool = False, script: Path = SCRIPT
) -> Iterator[Watched]:
    """observed: workers note the moments of a recovery, see recovery_moments.py."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            MARK: name,
        }
        if observed:
            environ["ELASTIC_OBSERVER"] = "tests.benchmarks.recovery_moments:moments:"
        watched = Watched(folder, environ, script)
        try:
            watched.start(launcher, arguments)
            yield watched
            watched.end_all()
        finally:
            kill_marked(folder)
            wait_until_gone(folder, within_s=_ORDERLY_S)
            watched.reap()


def pid_of(worker: str) -> int:
    return int(worker.rsplit("-", 2)[1])


def strike(worker: str, number: signal.Signals) -> float:
    """Sends the signal; returns the time just before."""
    at = time.time()
    os.kill(pid_of(worker), number)
    return at


def kill(worker: str) -> tuple[float, float]:
    """SIGKILL; returns the time just before, and how long the kernel took to end the process."""
    end = os.pidfd_open(pid_of(worker))
    try:
        at = strike(worker, signal.SIGKILL)
        select.select([end], [], [], 5.0)
        return at, time.time() - at
    finally:
        os.close(end)

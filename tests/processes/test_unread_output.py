"""A terminal is closed, or who read a pipe has ended, while a script prints: training goes on, or leaves in order."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from elastic.drill.machine import processes
from elastic.membership.environment import NOTICES
from elastic_checkpoint import Checkpointer
from tests.kit.agents import WITHIN_S

pytestmark = pytest.mark.nightly(sample=2, of="output that nobody reads")

STEPS = 30
TALKS = """
    import logging, sys, time
    logging.basicConfig(format="logged %(message)s", level=logging.INFO)  # which holds the stream that is there now
    from pathlib import Path
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset
    import elastic

    elastic.seed(0)
    x = torch.randn(64, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with elastic.Run(sys.argv[1], model=model, optimizer=optimizer, dataset=TensorDataset(x), batch_size=8,
                     virtual_workers=2, steps=STEPS, save_every=10**6) as run:
        for (batch,) in run.batches():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if run.stepped:
                print("step", run.step_index, flush=True)  # by every worker
                print("step", run.step_index, file=sys.__stderr__)
                logging.info("step %s", run.step_index)
                time.sleep(float(sys.argv[2]))
    print("the end")
    Path(sys.argv[1] + "-ended").touch()
"""
HOLDS = """
import os, subprocess, sys, time
from elastic.status.unread_output import drop_unread_output
held = sys.stderr, sys.stdout.buffer
drop_unread_output()
drop_unread_output()
print("begun", flush=True)
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.01)
for _ in range(3):
    held[1].write(b"x" * 100_000)
    print("lost", file=held[0])
    print("lost", flush=True)
os.write(1, b"lost")
subprocess.run(["echo", "lost"], check=True)
open(sys.argv[1] + "/ended", "w").close()
"""
ELASTIC = ["-m", "elastic", "run", "--standalone", "--nproc-per-node=2"]


class Heard:
    """A program whose output this process reads, until it does not any more."""

    def __init__(self, reads: int, program: subprocess.Popen[bytes]) -> None:
        self._reads, self._program = reads, program
        self.text = ""

    def until(self, what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while what not in self.text:
            assert time.monotonic() < deadline, self.text
            data = os.read(self._reads, 1 << 16)
            assert data, f"it ended before {what!r}: {self.text}"
            self.text += data.decode(errors="replace")

    def no_more(self) -> None:
        os.close(self._reads)
        self._reads = -1

    def status(self) -> int:
        return self._program.wait(WITHIN_S)

    def close(self) -> None:
        if self._reads >= 0:
            self.no_more()


Start = Callable[..., Heard]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(arguments of python, terminal=...): with a pipe as both its streams, or with a terminal of its own."""
    started: list[Heard] = []
    script = tmp_path / "script.py"
    environ = {**os.environ, processes.MARK: str(tmp_path), "TMPDIR": str(tmp_path), NOTICES: "none"}

    def begin(arguments: Sequence[object], *, terminal: bool = False) -> Heard:
        reads, its = os.openpty() if terminal else os.pipe()
        # A session's first process gets the terminal that it opens, and its SIGHUP.
        opens = ["/bin/sh", "-c", f'exec "$0" "$@" <>{os.ttyname(its)} >&0 2>&0'] if terminal else []
        program = subprocess.Popen(
            [*opens, sys.executable, *map(str, arguments)],
            env={**environ, "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        started.append(Heard(reads, program))
        return started[-1]

    script.write_text(textwrap.dedent(TALKS).replace("STEPS", str(STEPS)))
    yield begin
    processes.kill_marked(tmp_path)
    for one in started:
        one.close()
        one.status()


def test_a_closed_terminal_is_a_leave_in_order_while_the_script_prints(start: Start, tmp_path: Path) -> None:
    """SIGHUP: each worker's print failed before it could leave, and what was trained since the last save was lost."""
    run = start([*ELASTIC, tmp_path / "script.py", tmp_path / "run", 0.2], terminal=True)
    run.until("step 3")
    run.no_more()
    assert run.status() == 0
    assert _saved(tmp_path) >= 3  # all that was trained


@pytest.mark.parametrize(
    "launcher",
    [
        ELASTIC,
        [*ELASTIC, "--start-method=spawn"],
        [*ELASTIC, "--tee=3"],
        [],
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    ],
    ids=["elastic run", "fresh interpreters", "tee", "python", "torchrun"],
)
def test_a_pipe_that_nobody_reads_any_more_ends_nobody(launcher: list[str], start: Start, tmp_path: Path) -> None:
    """`elastic run ... | head`."""
    run = start([*launcher, tmp_path / "script.py", tmp_path / "run", 0.0])
    run.until("step 3")
    run.no_more()
    assert run.status() == 0
    assert (tmp_path / "run-ended").exists()
    assert _saved(tmp_path) == STEPS


@pytest.mark.parametrize("flags", [[], ["-u"]])
def test_whoever_holds_a_stream_writes_to_nobody_in_peace(flags: list[str], start: Start, tmp_path: Path) -> None:
    """Also where it was got hold of before, and by descriptor and in other programs, once it is known."""
    program = start([*flags, "-c", HOLDS, tmp_path])
    program.until("begun")
    program.no_more()
    (tmp_path / "go").touch()
    assert program.status() == 0
    assert (tmp_path / "ended").exists()


def _saved(folder: Path) -> int:
    """The step of the newest checkpoint."""
    with Checkpointer(folder / "run") as checkpoints:
        newest = checkpoints.latest()
    assert newest is not None
    return newest.id.step

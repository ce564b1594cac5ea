"""Workers without a sign for too long: one that hangs is replaced, wherever it does, and a stall of all waited for."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic_checkpoint import linux
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=2, of="hangs")

SCRIPT = """
    import os, sys, time, torch, elastic
    elastic.seed(0)
    folder = sys.argv[2]
    model = torch.nn.Linear(4, 1)
    away = False  # the file server, after a step that all three took: none of them holds a part of the next one by then
    once = lambda name: os.path.exists(f"{folder}/{name}") or open(f"{folder}/{name}", "x").close()

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            while away and not os.path.exists(f"{folder}/go"):
                time.sleep(0.01)
            return torch.ones(4) * i / 64, torch.ones(1)

    def error(x, y):
        if run.step_index == 5 and run.rank == 1 and not once("hung"):
            time.sleep(600)
        return {"e": ((model(x) - y) ** 2).sum()}

    with elastic.Run(
        sys.argv[1], model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=Data(), batch_size=16,
        virtual_workers=6, steps=40,
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(((model(x) - y) ** 2).sum(), len(y))
            run.evaluate(torch.utils.data.TensorDataset(torch.ones(9, 4), torch.ones(9, 1)), error)
            if run.world_size < 3:
                time.sleep(0.05)
            away = away or (run.step_index >= 8 and run.world_size == 3)
    os.write(1, f"finished {run.step_index}\\n".encode())  # at once: print writes piece by piece
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """The script above, on three workers."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    flags = ["run", "--standalone", "--no-status", "--hang-limit=2", "--nproc-per-node=3"]
    with Launch("elastic", [*flags, script, tmp_path / "run", tmp_path]) as launch:
        yield launch


def test_a_hang_in_an_evaluation_is_found_and_a_stall_of_all_is_waited_for(launch: Launch, tmp_path: Path) -> None:
    """Nobody looked at evaluations: the others waited for timeout_s, then for an hour. And a file server that was away
    for longer than the limit was taken for a hang of each worker, the second of which ended the run."""
    launch.wait_for(lambda: "all 3 workers stood still in dataset[i]" in launch.output, "stall", within_s=240)
    (tmp_path / "go").touch()
    output = launch.succeed(within_s=240)
    assert len(re.findall("^finished 40$", output, re.M)) == 3
    (stuck,) = re.findall("is stuck at step .*", output)
    assert stuck.startswith("is stuck at step 5: it has evaluated for "), output
    assert "in error" in output, "its stacks"
    assert re.search(r"dataset\[i\] for step \d+ goes on, after ", output)


PAUSED = """
    import os, signal, sys, time, torch, elastic
    elastic.seed(0)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
    with elastic.Run(
        sys.argv[1], model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=data, batch_size=16,
        virtual_workers=2, steps=12,
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(((model(x) - y) ** 2).sum(), len(y))
            if run.step_index == 5 and run.rank == 1:
                signal.pause()  # until a signal comes: the one that has its stacks printed
            if run.step_index > 5:
                time.sleep(float(sys.argv[2]))
    os.write(1, f"finished {run.step_index} {os.getpid()}\\n".encode())  # at once: print writes piece by piece
"""


@pytest.mark.parametrize("lives", [True, False], ids=["lives", "has finished by then"])
def test_a_worker_that_goes_on_while_its_stacks_are_printed_is_not_killed(tmp_path: Path, lives: bool) -> None:
    """The verdict speaks of its last sign, and it has given another since."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PAUSED))
    flags = ["run", "--standalone", "--no-status", "--hang-limit=1", "--nproc-per-node=2"]
    with Launch("elastic", [*flags, script, tmp_path / "run", 0.2 * lives]) as launch:
        output = launch.succeed(within_s=240)
    assert "is stuck at step 5" in output
    assert output.count("went on while its stacks were printed, and lives") >= lives, output  # or it ended before that
    assert len(re.findall(r"^finished 12 ", output, re.M)) == 2
    assert "after the loss of" not in output


def test_the_kernel_counts_for_how_long_a_process_waits_for_a_processor() -> None:
    """Of two busy loops on one processor each waits while the other runs."""
    with ExitStack() as running:
        loops = [
            running.enter_context(subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]))
            for _ in range(2)
        ]
        for loop in loops:
            running.callback(loop.kill)
        deadline = time.monotonic() + 60
        while linux.held_up_s(loops[0].pid) < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert linux.held_up_s(2**22 + 1) == 0.0

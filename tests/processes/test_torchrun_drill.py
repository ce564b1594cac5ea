"""`elastic drill --torchrun` tells what faults do to a script that knows nothing of elastic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=2, of="drills of torchrun scripts")

OTHERS = Path(__file__).parents[1] / "kit" / "programs" / "others"
HAND_MADE = """
import os, sys, tempfile, time
import torch, torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
folder = sys.argv[1]
path = os.path.join(folder, "state.pt")
weight, begin = torch.zeros(4), 0
if os.path.exists(path):
    weight, begin = torch.load(path)
writer = SummaryWriter(folder) if dist.get_rank() == 0 else None
for turn in range(begin, 24):
    weight = weight + 0.1  # by no optimizer of torch's
    dist.barrier()
    time.sleep(0.05)
    if writer is not None:
        writer.add_scalar("weight", float(weight.sum()), turn)
        writer.flush()
        print(f"turn {turn} done", flush=True)
        if (turn + 1) % 6 == 0:
            torch.save((weight, turn + 1), path + ".new")
            os.replace(path + ".new", path)
if writer is not None and begin:
    open(os.path.join(folder, "was_resumed"), "w").close()
    open(os.path.join(tempfile.gettempdir(), "forgotten"), "w").close()
dist.destroy_process_group()
"""


def drill(
    folder: Path, *options: str, script: str = "ddp.py", args: tuple[str, ...] = ("{run}", "0.05")
) -> tuple[int, str]:
    flags = ["drill", OTHERS / script, "--torchrun", *options, "--", *args]
    with Launch("elastic", flags, env={"COLUMNS": "300", "TMPDIR": str(folder)}) as launch:
        return launch.finish(within_s=500), launch.output


def row(output: str, name: str) -> str:
    return next(line for line in output.splitlines() if line.strip().startswith(name))


def test_a_script_that_goes_on_where_it_saved_loses_nothing_at_its_own_size(tmp_path: Path) -> None:
    status, output = drill(tmp_path, "--workers=2", "--kill=1@step=6", args=("{run}", "0.1"))
    assert status == 0, output
    assert "yes, started again 1 time" in row(output, "comes to its end")
    assert re.search(r"720 +the same", row(output, "examples of TensorDataset of 360")), output
    assert re.search(r" 0 +[1-4] ", row(output, "steps done once more")), "it saves the sixth and the eleventh"
    at_the_end = re.findall(r"\d\.\d{4}", row(output, "loss, at the end"))
    assert len(at_the_end) == 2
    assert at_the_end[0] == at_the_end[1]
    assert not any(tmp_path.glob("elastic-drill-*"))


def test_one_that_counts_batches_is_told_which_examples_a_resize_costs(tmp_path: Path) -> None:
    """It skips as many batches as it had done, of ranks that are fewer by then: what those had read comes again."""
    status, output = drill(tmp_path, "--workers=3", "--nodes=3", "--leave-node=2@step=12")
    assert status == 1, output
    assert "3 → 2" in row(output, "workers")
    (kept,) = tmp_path.glob("elastic-drill-*")
    assert f"kept    {kept}" in output
    assert re.search(r"720 +0 lost \(0% of an epoch\), [1-9]\d* repeated", row(output, "examples of")), output


def test_a_fault_strikes_as_a_line_is_printed_and_progress_is_seen_in_output_saves_and_tensorboard(
    tmp_path: Path,
) -> None:
    """A script whose steps nobody knows, and what its second start leaves behind."""
    (tmp_path / "train.py").write_text(HAND_MADE)
    status, output = drill(
        tmp_path, "--workers=2", "--kill=1@output=turn 10 ", script=str(tmp_path / "train.py"), args=("{run}",)
    )
    assert status == 1, output
    assert "yes, started again 1 time" in row(output, "comes to its end")
    assert "not known" in row(output, "steps"), output
    for name in ("until a new line of output", "until it saves again", "until a new point"):
        assert re.search(r" \d+(\.\d+)? m?s", row(output, name)), output
    points = re.search(r" 24 +(\d+)(?:, (\d+) more than once)? +elastic", row(output, "points in TensorBoard"))
    assert points is not None, output
    assert int(points[1]) == 24 + int(points[2] or 0)
    assert "temporary file forgotten" in row(output, "left behind")
    assert " was_resumed " in row(output, "files with faults alone"), output


def test_a_step_of_a_script_whose_steps_nobody_knows_cannot_be_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HAND_MADE)
    status, output = drill(
        tmp_path, "--workers=1", "--kill=0@step=3", script=str(tmp_path / "train.py"), args=("{run}",)
    )
    assert status == 2, output
    assert "next   name lines of its output: --kill '1@output=TEXT'" in output


def test_runs_that_share_a_folder_are_not_compared(tmp_path: Path) -> None:
    status, output = drill(tmp_path, "--workers=2", "--kill=1@step=8", args=(str(tmp_path), "0.05"))
    assert status == 2, output
    assert "{run} in the script's arguments" in output

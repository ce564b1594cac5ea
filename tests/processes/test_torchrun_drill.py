"""`elastic drill --torchrun` tells what faults do to a script that knows nothing of elastic."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.launch import Launch

OTHERS = Path(__file__).parents[1] / "kit" / "programs" / "others"


def drill(
    folder: Path, *options: str, script: str = "ddp.py", args: tuple[str, ...] = ("{run}", "0.05")
) -> tuple[int, str]:
    flags = ["drill", OTHERS / script, "--torchrun", *options, "--", *args]
    with Launch("elastic", flags, env={"COLUMNS": "300", "TMPDIR": str(folder)}) as launch:
        return launch.finish(within_s=500), launch.output


def row(output: str, name: str) -> str:
    return next(line for line in output.splitlines() if line.strip().startswith(name))


def test_a_script_that_goes_on_where_it_saved_loses_nothing_at_its_own_size(tmp_path: Path) -> None:
    status, output = drill(tmp_path, "--workers=2", "--kill=1@step=8")
    assert status == 0, output
    assert "yes, started again 1 time" in row(output, "comes to its end")
    assert re.search(r"720 +the same", row(output, "examples of TensorDataset of 360")), output
    assert re.search(r" 0 +[1-9]", row(output, "steps done once more")), output
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


def test_runs_that_share_a_folder_are_not_compared(tmp_path: Path) -> None:
    status, output = drill(tmp_path, "--workers=2", "--kill=1@step=8", args=(str(tmp_path), "0.05"))
    assert status == 2, output
    assert "{run} in the script's arguments" in output

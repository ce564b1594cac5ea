"""What `elastic plan` says of memory is what workers hold, of sharded models and of whole ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic.plan.memory import bytes_a_parameter
from tests.kit.launch import Launch

PROGRAM = "tests.kit.programs.sharded_memory"
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "sharded_memory.py"
UNITS = 4  # of a sharded model, whole: parameters, gradients, and both sides of a message
SPARE = 1.01  # sums are padded


def held(url: Path, *options: str, workers: int, size: int) -> list[dict[str, Any]]:
    """What each worker has counted."""
    arguments = [str(url), *options]
    if workers == 1:
        launch = Launch(PROGRAM, arguments, env={"OMP_NUM_THREADS": "1"})
    else:
        of_run = ["run", "--no-status", f"--nproc-per-node={workers}", f"--replica-size={size}"]
        launch = Launch("elastic", [*of_run, SCRIPT, *arguments])
    with launch:
        output = launch.succeed(within_s=400.0)
    found = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '"most"' in line]
    assert len(found) == workers
    return found


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("workers", "size", "shares", "options"),
    [(4, 2, 12, ()), (4, 4, 12, ()), (4, 2, 7, ()), (1, 1, 12, ()), (1, 1, 12, ("--whole",))],
)
def test_a_worker_holds_what_the_plan_says(
    tmp_path: Path, workers: int, size: int, shares: int, options: tuple[str, ...]
) -> None:
    """State and sums in fp32, a k-th of both; of gradients that travel between replicas, nothing beside the sums."""
    each = bytes_a_parameter(shares, replicas=workers // size, replica_size=size)
    for one in held(tmp_path / "run", f"--virtual-workers={shares}", *options, workers=workers, size=size):
        part = 4 * one["parameters"] / size
        units = 0 if "--whole" in options else UNITS * 4 * one["unit"]
        planned = each * one["parameters"] + units
        assert one["state"] <= 3 * SPARE * part
        assert 0.8 * planned < max(one["most"].values()) < SPARE * planned, one
        assert one["most"].get("exchange", 0) <= one["state"] + one["kept"] + SPARE * 2 * part

"""What costs seconds to import is imported by nobody who has no use for it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import torch

from elastic_checkpoint import Checkpointer

OPTIONAL = (
    *("accelerate", "transformers", "lightning", "datasets", "pyarrow", "albumentations"),
    "prometheus_client",
)

CALLS = """
    import contextlib, io, json, sys
    import elastic.__main__
    for command in json.loads(sys.argv[1]):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                status = elastic.__main__.main(command[1:])
            except SystemExit as asked_for_help:
                status = asked_for_help.code
        named = command[: 3 if command[1] == "checkpoint" else 2]
        print(*named, status, *(name for name in ("torch", "numpy", "s3fs") if name in sys.modules))
"""


def test_elastic_imports_no_framework() -> None:
    """They cost seconds at each start of a worker, begin threads that a fork cannot carry, and need not be there."""
    asks = f"import sys, elastic, elastic.run; print(*(name for name in {OPTIONAL} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []


def test_commands_that_compute_nothing_do_without_torch(tmp_path: Path) -> None:
    """It is four fifths of the time that they take with it. `run` has torchrun's flags, and export and import make
    tensors."""
    run = tmp_path / "run"
    with Checkpointer(run) as checkpoints:
        for step in range(3):
            halves = torch.full((3,), step, dtype=torch.bfloat16)
            state = {"wide": torch.full((2, 3), step).T, "halves": halves, "array": np.full(3, step)}
            checkpoints.save(step, state, meta={"world_size": 2})
    (run / "events").mkdir()
    (run / "events" / "a.jsonl").write_text(json.dumps({"t": 1.0, "worker": "a", "event": "begin", "step": 0}) + "\n")
    plan = ["--parameters=124M", "--batch-time=16s", "--nodes=4", "--across=10Gbit/s:20us", "--trace=aws-p3-2020"]
    commands = [
        ["elastic", "--help"],
        ["elastic", "drill", "--help"],
        ["elastic", "doctor", "--help"],
        ["elastic", "plan", *plan],
        ["elastic", "simulate", *plan],
        ["elastic", "report", str(run), "--html", str(tmp_path / "report.html")],
        ["elastic", "checkpoint", "--help"],
        ["elastic", "checkpoint", "ls", str(run)],
        ["elastic", "checkpoint", "verify", str(run)],
        ["elastic", "checkpoint", "digest", str(run)],
        ["elastic", "checkpoint", "diff", str(run), "1", "2"],
        ["elastic", "checkpoint", "sweep", str(run), "--keep", "2"],
    ]
    asked = [sys.executable, "-c", textwrap.dedent(CALLS), json.dumps(commands)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "elastic --help 0",
        "elastic drill 0",
        "elastic doctor 0",
        "elastic plan 0",
        "elastic simulate 0",
        "elastic report 0",
        "elastic checkpoint --help 0",
        "elastic checkpoint ls 0 numpy",
        "elastic checkpoint verify 0 numpy",
        "elastic checkpoint digest 0 numpy",
        "elastic checkpoint diff 1 numpy",
        "elastic checkpoint sweep 0 numpy",
    ]

"""Each step stands once in what a run logs, whichever workers are lost, and when."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At
from elastic.logging.wandb import records

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "curves.py"
STEPS, EPOCHS = 90, 3
WITHIN_S = 240.0


@pytest.mark.nightly(sample=1, of="curves of a run")
@pytest.mark.parametrize("faults", ["coordinators", "all at once"])
def test_each_step_is_logged_once_whatever_is_killed(
    faults: str, elastic_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    folder = tmp_path / "curves"
    folder.mkdir()
    run = elastic_cluster(
        script=PROGRAM, workers=3, launcher="elastic", restarts=20, steps=STEPS, curves=folder
    )  # fmt: skip
    phases = ("in_backward", "in_exchange", "update", "applied")
    for number, step in enumerate((9, 20, 31, 44, 50, 61, 62, 77)):
        run.kill(0 if number % 3 else 1, At(step=step, phase=phases[number % len(phases)]))
    if faults == "all at once":
        run.kill_all(At(step=40, phase="in_backward"))
        run.kill_all(At(step=71, phase="applied"))
    run.start()
    if faults == "all at once":
        for _ in range(2):
            run.finish(within_s=WITHIN_S)
            run.start()
    end = run.finish(within_s=WITHIN_S)
    assert end.exit_code == 0, end.output
    every, tenth = range(1, STEPS + 1), range(10, STEPS + 1, 10)
    epochs = [STEPS * number // EPOCHS for number in range(1, EPOCHS + 1)]
    for found in (of_table(folder), of_tensorboard(folder), of_wandb(folder)):
        assert found["loss"] == Counter(every)
        assert found["tenth"] == Counter(tenth)
        assert found["epoch"] == Counter(epochs)


def of_table(folder: Path) -> dict[str, Counter[int]]:
    with (folder / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: Counter(int(row["step"]) for row in rows if row[name]) for name in rows[0]}


def of_tensorboard(folder: Path) -> dict[str, Counter[int]]:
    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: Counter(one.step for one in read.Scalars(name)) for name in read.Tags()["scalars"]}


def of_wandb(folder: Path) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {}
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        for data in records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            for name in items:
                found.setdefault(name, Counter())[int(float(items.get("step", "0")))] += 1
    return found

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
WITHIN_S = 400.0


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
    kill_coordinators(run, all_at_once=faults == "all at once")
    every, tenth = range(1, STEPS + 1), range(10, STEPS + 1, 10)
    for found in (of_table(folder / "curves.csv"), of_tensorboard(folder / "tensorboard"), of_wandb(folder)):
        assert found["loss"] == Counter(every)
        assert found["tenth"] == Counter(tenth)
        assert found["epoch"] == Counter(behind_epochs())
        assert found["test"] == Counter([STEPS])


@pytest.mark.nightly(sample=2, of="curves of a trainer")
@pytest.mark.parametrize("faults", ["coordinators", "all at once"])
@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_trainers_own_loggers_have_each_step_once_whatever_is_killed(
    trainer: str, faults: str, elastic_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """A script of Lightning's or of transformers' has loggers already, and nobody rewrites them for a run."""
    folder = tmp_path / "curves"
    script = PROGRAM.with_name(f"{trainer}_curves.py")
    run = elastic_cluster(script=script, workers=3, launcher="elastic", restarts=20, steps=STEPS, curves=folder)
    kill_coordinators(run, all_at_once=faults == "all at once")
    every, epochs = Counter(range(1, STEPS + 1)), Counter(behind_epochs())
    if trainer == "transformers":
        (place,) = (folder / "runs").iterdir()
        found = of_tensorboard(place)
        assert found["train/loss"] == found["train/learning_rate"] == every
        assert found["eval/loss"] == epochs
        assert found["train/train_loss"] == found["test/loss"] == Counter([STEPS])
        return
    (place,) = (folder / "lightning_logs").iterdir()
    for found, first in ((of_tensorboard(place), ""), (of_table(place / "metrics.csv"), "of-")):
        assert shifted(found[f"{first}loss_step"]) == shifted(found[f"{first}lr-AdamW"]) == every
        assert shifted(found[f"{first}loss_epoch"]) == shifted(found[f"{first}val_loss"]) == epochs
        assert shifted(found[f"{first}test_loss"]) == Counter([STEPS])
    assert of_tensorboard(place)["hp_metric"] == Counter([0])
    assert (place / "hparams.yaml").read_text() == f"steps: {STEPS}\nwidth: 32\n"


def kill_coordinators(run: Cluster, *, all_at_once: bool) -> None:
    """Kill eight workers, most of them while they write the curves; wait for the end. Or everything, twice, as well.

    Then the script is started again, though the run has finished.
    """
    phases = ("in_backward", "in_exchange", "update", "applied")
    for number, step in enumerate((9, 20, 31, 44, 50, 61, 62, 77)):
        run.kill(0 if number % 3 else 1, At(step=step, phase=phases[number % len(phases)]))
    if all_at_once:
        run.kill_all(At(step=40, phase="in_backward"))
        run.kill_all(At(step=71, phase="applied"))
    run.start()
    if all_at_once:
        for _ in range(2):
            run.finish(within_s=WITHIN_S)
            run.start()
    end = run.finish(within_s=WITHIN_S)
    assert end.exit_code == 0, end.output
    if all_at_once:
        run.start()
        end = run.finish(within_s=WITHIN_S)
        assert end.exit_code == 0, end.output


def behind_epochs() -> list[int]:
    return [STEPS * number // EPOCHS for number in range(1, EPOCHS + 1)]


def shifted(steps: Counter[int]) -> Counter[int]:
    """Count the first step as 1, where Lightning says 0."""
    return Counter({step + 1: count for step, count in steps.items()})


def of_table(path: Path) -> dict[str, Counter[int]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: Counter(int(row["step"]) for row in rows if row[name]) for name in rows[0]}


def of_tensorboard(folder: Path) -> dict[str, Counter[int]]:
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
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

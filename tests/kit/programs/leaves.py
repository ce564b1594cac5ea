"""A run that is hurt where its workers leave: python -m tests.kit.programs.leaves URL FOLDER [--hurt …]

    alone   worker 1 leaves at step 20; at that boundary worker 0 is killed in its script's own code
    step    every worker is killed in step 5
    told    in step 30 every worker waits until it is told to leave, and says so: FOLDER/waits-RANK

As an observer (ELASTIC_OBSERVER=tests.kit.programs.leaves:AtSave:FOLDER): kills who begins a save after the first one,
as often as FOLDER/kills says; or breaks the storage there, where FOLDER/breaks exists.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch

import elastic
from elastic.events.observer import ObservedRun, Observer

LEAVES_AT, KILLED_AT, TOLD_AT, STEPS = 20, 5, 30, 40


class AtSave(Observer):
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        if moment != "save" or run.step_index == 0:
            return
        kills = self._folder / "kills"
        if kills.exists() and (left := int(kills.read_text())) > 0:
            kills.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        if (self._folder / "breaks").exists():
            data = self._folder / "run" / "data"
            data.rename(self._folder / "away")
            data.write_text("a file")


def wait_for_notice(run: elastic.Run) -> None:
    """A thread reads signals and words of the agent; nothing public tells."""
    assert run._loop is not None
    while run._loop._recovery.departure.notice is None:
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hurt")
    options = parser.parse_args()
    struck = options.folder / "struck"

    elastic.seed(0)
    model = torch.nn.Linear(4, 1)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        dataset=torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1)),
        batch_size=16,
        virtual_workers=4,
        steps=STEPS,
        save_every=10**9,
    ) as run:
        sys.stdout.write(f"begins at step {run.step_index}\n")
        sys.stdout.flush()
        for step in run:
            for points, values in step:
                if options.hurt == "step" and step.index == KILLED_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                if options.hurt == "alone" and step.index == LEAVES_AT and run.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                    wait_for_notice(run)
                if options.hurt == "told" and step.index == TOLD_AT:
                    (options.folder / f"waits-{run.rank}").touch()
                    wait_for_notice(run)
                step.backward(((model(points) - values) ** 2).sum(), len(values))
            if options.hurt == "alone" and step.index == LEAVES_AT and run.rank == 0 and not struck.exists():
                struck.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write(f"ends at step {run.step_index}\n")


if __name__ == "__main__":
    main()

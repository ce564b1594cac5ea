"""A script whose own code around the loop takes part in what happens: python tests/kit/programs/around.py URL.

It evaluates before the loop and after every step; what it makes of that is its `extra=`, so a save in the middle of
this code would not be what any undisturbed run has. `--wait-at STEP`: in the code after that step, rank 1 leaves
WAIT.awaited and goes on when WAIT is there. `--break-at STEP`: it leaves the loop after it. `--crash-after`: the rank
that raises behind the with-block.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from small import Noisy  # type: ignore[import-not-found]  # beside this script
from torch import nn

import elastic

SLOW_S = 0.6
SAMPLES_S = 6.0  # more than --hang-limit=4 and what printing the stacks takes, less than twice that limit


class History:
    """What the script has made of its evaluations."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--wait", type=Path)
    parser.add_argument("--wait-at", type=int, default=-1)
    parser.add_argument("--break-at", type=int, default=-1)
    parser.add_argument("--crash-after", type=int, default=-1)
    parser.add_argument("--slow-evaluation", type=int, default=-1, help="after this step it takes several seconds")
    parser.add_argument(
        "--samples-every", type=int, default=0, help="steps; the coordinator writes some, which takes a while"
    )
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    options = parser.parse_args()

    elastic.seed(5)
    dataset, checked = Noisy(24 * options.steps, 5), Noisy(48, 6)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
    history = History()

    def loss_of(points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if run.step_index - 1 == options.slow_evaluation and not torch.is_grad_enabled():
            time.sleep(SLOW_S)
        return {"loss": F.cross_entropy(model(points), labels, reduction="sum")}

    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=dataset,
        batch_size=24,
        virtual_workers=8,
        steps=options.steps,
        save_every=options.save_every,
        extra={"history": history},
    ) as run:
        if not history.losses:
            history.losses.append(run.evaluate(checked, loss_of)["loss"])
        for step in run:
            for points, labels in step:
                step.backward(loss_of(points, labels)["loss"], count=len(labels))
            history.losses.append(run.evaluate(checked, loss_of)["loss"])
            if step.index == options.wait_at and run.rank == 1:
                with run.long_section():
                    with run.long_section(at_most_s=0.1):
                        pass  # the outer one goes on
                    wait_for(options.wait)
            if options.samples_every and run.is_coordinator and run.step_index % options.samples_every == 0:
                time.sleep(SAMPLES_S)
            if run.world_size < options.unhurried:
                time.sleep(0.05)
            if step.index == options.break_at:
                break
        if run.is_coordinator:
            print("history", *history.losses, flush=True)
        rank = run.rank
    if rank == options.crash_after:
        raise RuntimeError("after the end")


def wait_for(go: Path) -> None:
    Path(f"{go}.awaited").touch()
    deadline = time.monotonic() + 60
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    main()

"""A loop over data of which some examples cannot be read, with BatchNorm, dropout, augmentation and a schedule.

Beside one example in 29, all of one share of a step cannot be read, and all of the last share of another. With
--flaky, one more in eleven raises where the run's rank is 1, and nowhere else. Each worker prints one line of digests,
and what it counted of its steps.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from losing import lose  # type: ignore[import-not-found]  # beside this script
from torch import nn
from torn import torn  # type: ignore[import-not-found]  # beside this script

import elastic
import elastic_checkpoint

BATCH, SHARES, SEED = 48, 8, 7


class Spotty:
    """Points in eight dimensions with a label; each read adds noise, and some raise.

    run  set once there is one
    """

    def __init__(self, length: int, *, flaky: bool) -> None:
        draw = torch.Generator().manual_seed(SEED)
        self.points = torch.randn(length, 8, generator=draw)
        self.labels = (self.points.sum(dim=1) > 0).long()
        self.run: elastic.Run | None = None
        self.flaky = flaky
        whole = (3, 2), (5, SHARES - 1)
        self.torn = torn(length, batch_size=BATCH, shares=SHARES, seed=SEED, whole=whole, every=29)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index in self.torn:
            torch.randn(3)  # what it draws before it raises is its own affair
            raise OSError(f"record {index} is torn")
        if self.flaky and index % 11 == 0 and self.run is not None and self.run.rank == 1:
            raise TimeoutError(f"record {index} did not come")
        return self.points[index] + 0.1 * torch.randn(8), self.labels[index]


class Counts:
    """Of each step, what it was a mean over, and its loss."""

    def __init__(self) -> None:
        self.counts: list[float] = []
        self.losses: list[float] = []

    def note(self, count: float, loss: float) -> None:
        self.counts.append(count)
        self.losses.append(loss / count)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.losses = list(state["counts"]), list(state["losses"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24, help="of two epochs")
    parser.add_argument("--loop", choices=("steps", "batches"), default="batches")
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--flaky", action="store_true")
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--lose", type=int, help="the step whose last message rank 1 loses")
    options = parser.parse_args()

    elastic.seed(SEED)
    dataset = Spotty(options.steps // 2 * BATCH - 21, flaky=options.flaky)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    counts = Counts()

    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=dataset,
        batch_size=BATCH,
        virtual_workers=SHARES,
        epochs=2,
        seed=SEED,
        save_every=2,
        compute=elastic.Compute(mode=options.mode),
        data=elastic.Data(num_workers=options.num_workers, on_bad_example="skip"),
        extra={"counts": counts},
    ) as run:
        dataset.run = run
        if options.lose is not None:
            lose(options.lose, run)
        if options.loop == "steps":
            for step in run:
                for points, labels in step:
                    total = F.cross_entropy(model(points), labels, reduction="sum")
                    step.add(loss=total.detach())
                    step.backward(total, len(labels))
                counts.note(step.count, step.sums["loss"])
                hurry(run, options.unhurried)
        else:
            for points, labels in run.batches():
                optimizer.zero_grad()
                loss: Any = F.cross_entropy(model(points), labels)
                run.add(loss=loss.detach() * len(labels))
                loss.backward()
                optimizer.step()
                scheduler.step()
                if run.stepped:
                    counts.note(run.count, run.sums["loss"])
                    hurry(run, options.unhurried)
    seen = {name: torch.tensor(value, dtype=torch.float64) for name, value in counts.state_dict().items()}
    state = elastic_checkpoint.digest({"model": model, "optimizer": optimizer, "scheduler": scheduler, "counts": seen})
    os.write(1, f"took part: {state} counted {sum(counts.counts)}\n".encode())  # at once: print writes piece by piece


def hurry(run: elastic.Run, workers: int) -> None:
    """Not where a run of few steps is to see its lost workers replaced."""
    if run.world_size < workers:
        time.sleep(0.05)


if __name__ == "__main__":
    main()

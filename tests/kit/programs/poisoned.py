"""Training with examples that spoil their step: numbers that are none, or far too large ones, in both loops.

The order is that of the data, so that example i is read in step i // batch size of each epoch.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import elastic
import elastic_checkpoint
from elastic.loop.steps import bad_steps
from elastic.orders import Sequential


class Points:
    """In eight dimensions, with a label. poison: example -> what its numbers are multiplied by"""

    def __init__(self, length: int, poison: dict[int, float]) -> None:
        draw = torch.Generator().manual_seed(3)
        self.points = torch.randn(length, 8, generator=draw)
        self.labels = (self.points.sum(dim=1) > 0).long()
        for index, factor in poison.items():
            self.points[index] *= factor

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index] + 0.1 * torch.randn(8), self.labels[index]


class Counts:
    """What the update has done, in extra=."""

    def __init__(self) -> None:
        self.updates = 0

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


def lose(rank: int, run: elastic.Run, marker: Path) -> None:
    """Kills that rank once, between the coordinator's reading and all having the state."""
    broadcast = bad_steps.broadcast

    def killed(*arguments: Any) -> Any:
        if run.rank == rank and run.step_index == 14 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return broadcast(*arguments)

    bad_steps.broadcast = killed  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--length", type=int, default=288)
    parser.add_argument("--on-bad", default="skip")
    parser.add_argument("--spike", type=float)
    parser.add_argument("--in-a-row-max", type=int, default=10)
    parser.add_argument("--nan", type=int, action="append", default=[], help="an example")
    parser.add_argument("--huge", type=int, action="append", default=[], help="an example")
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--plain", type=int, default=0, help="the loop over run.batches()")
    parser.add_argument("--scaled", type=int, default=0, help="with a GradScaler, whose scale begins too high")
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument(
        "--lose", type=int, help="this rank is killed once, as a state that was gone back to is handed round"
    )
    options = parser.parse_args()

    elastic.seed(1)
    dataset = Points(options.length, {**dict.fromkeys(options.nan, float("nan")), **dict.fromkeys(options.huge, 1e4)})
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2))
    if options.huge:
        model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=4) if options.scaled else None
    counts = Counts()
    rule = elastic.OnBad(options.on_bad, spike=options.spike, window=8, in_a_row_max=options.in_a_row_max)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        update=elastic.Update(scaler=scaler, clip_grad_norm=None if options.plain else 1.0, on_bad=rule),
        dataset=dataset,
        batch_size=24,
        virtual_workers=8,
        steps=options.steps,
        data=elastic.Data(order=Sequential()),
        seed=1,
        save_every=options.save_every,
        compute=elastic.Compute(mode=options.mode),
        extra={"counts": counts},
    ) as run:
        if options.lose is not None:
            lose(options.lose, run, Path(options.url) / "lost")

        def counted(*_: Any) -> None:
            counts.updates += 1

        run.on_apply(counted)

        def say(why: str | None) -> None:
            if run.is_coordinator and why is not None:
                print(f"passed over: {why}")
            if run.world_size < options.unhurried:
                time.sleep(0.1)

        if options.plain:
            for x, y in run.batches():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                run.add(loss=loss.detach() * len(x))
                loss = scaler.scale(loss) if scaler is not None else loss
                loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
                if scaler is not None:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                scheduler.step()
                if run.stepped or run.passed_over:
                    say(run.passed_over)
        else:
            for step in run:
                for x, y in step:
                    loss = F.cross_entropy(model(x), y, reduction="sum")
                    step.add(loss=loss)
                    step.backward(loss, count=len(x))
                say(step.passed_over)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "counts": counts}
        scaled = f", scale {scaler.get_scale():g}" if scaler is not None else ""
        print(f"took part: {elastic_checkpoint.digest(state)} with {counts.updates} updates{scaled}")


if __name__ == "__main__":
    main()

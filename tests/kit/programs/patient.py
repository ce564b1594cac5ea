"""A script that stops early by itself: python -m tests.kit.programs.patient URL [--out FILE] [--go FILE].

After each step it evaluates, then changes a history and a count of steps without progress, which are its `extra=`.
Rank 0 leaves the history and the digest of the weights in FILE. With --go, ranks other than 0 come to their Run when
that file is there; FILE.awaited says that one waits for it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.membership import environment


class Patience:
    """What is known about progress."""

    def __init__(self) -> None:
        self.history: list[float] = []
        self.waited = 0

    def state_dict(self) -> dict[str, Any]:
        return {"history": list(self.history), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history, self.waited = list(state["history"]), state["waited"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--go", type=Path)
    options = parser.parse_args()
    if options.go is not None and environment.read().rank > 0:
        options.go.with_suffix(".awaited").touch()
        deadline = time.monotonic() + 60
        while not options.go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    elastic.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
    data = TensorDataset(torch.randn(96, 4), torch.arange(96) % 2)
    patience = Patience()
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-2),
        dataset=data,
        batch_size=12,
        virtual_workers=4,
        epochs=1,
        save_every=2,
        extra={"patience": patience},
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            loss = run.evaluate(data, lambda x, y: {"loss": F.cross_entropy(model(x), y, reduction="sum")})["loss"]
            patience.waited = 0 if loss < min(patience.history, default=1e9) else patience.waited + 1
            patience.history.append(loss)
            if patience.waited == 3:
                run.stop("no progress")
        if run.is_coordinator:
            digest = elastic_checkpoint.digest({"model": model, "optimizers": dict(run.optimizers)})
            options.out.write_text(json.dumps({**patience.state_dict(), "digest": digest, "steps": run.step_index}))


if __name__ == "__main__":
    main()

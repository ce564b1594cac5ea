"""A run whose script waits until its node has read ahead, before its Run or in its first step."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

import fsspec
import torch
from torch import nn

import elastic
from elastic_checkpoint import linux

AHEAD = "elastic-ahead"
_WITHIN_S = 200.0


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def reads_ahead() -> bool:
    """Whether a child of the agent does."""
    of_agent = linux.children(int(os.environ["ELASTIC_AGENT"])).values()
    return any(stat.name == AHEAD and not stat.is_dead for stat in of_agent)


def is_free() -> bool:
    """Its memory."""
    return os.fstat(int(os.environ["ELASTIC_READ_AHEAD"])).st_size <= 4096


def copy(source: str, target: str, **options: Any) -> None:
    """Of an S3 server, all that lies there."""
    filesystem = fsspec.filesystem("s3", **options)
    for path in filesystem.find(source):
        filesystem.copy(path, f"{target}{path.removeprefix(source.removeprefix('s3://'))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--awaits", choices=["nothing", "its-end-first", "its-end-later"], default="nothing")
    parser.add_argument(
        "--copies", help="puts what lies there into the run, before its Run and after the reading ahead"
    )
    options = parser.parse_args()
    elastic.seed(7)
    model = nn.Sequential(nn.Linear(16, 2048), nn.ReLU(), nn.Linear(2048, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dataset = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(2, (64,)))
    if options.awaits == "its-end-later":
        assert reads_ahead(), "it has not begun, or has ended by itself"
    elif options.awaits == "its-end-first":
        until(lambda: not reads_ahead(), "it goes on and on")
    if options.copies and os.environ["LOCAL_RANK"] == "0":  # who coordinates
        copy(options.copies, options.url)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        batch_size=8,
        virtual_workers=4,
        steps=options.steps,
        save_every=2,
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(nn.functional.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            if options.awaits != "nothing":
                until(lambda: not reads_ahead(), "it goes on although the state is here")
                until(is_free, "its memory is kept")
        if run.is_coordinator:
            weights = b"".join(bytes(p.detach().numpy().tobytes()) for p in model.parameters())
            print(f"at step {run.step_index}: {hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    main()

"""Trains on files of lines, which end and begin again: a stream for each virtual worker. Prints a line of digests.

With --plain it is a loop over run.batches(); --lose as in plain.py. With --write, the files are its own.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lines import write_lines  # type: ignore[import-not-found]  # beside this script
from losing import lose  # type: ignore[import-not-found]
from torch import nn

import elastic
import elastic_checkpoint


def decode(line: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """With noise, as an augmentation has."""
    point = torch.tensor([float(number) for number in line.split()])
    return point + 0.1 * torch.randn(len(point)), (point.sum() > 0).long()


def of_lines(folder: Path) -> elastic.Streams:
    return elastic.Streams.lines([str(file) for file in folder.glob("lines-*.txt")], decode)


def main(streams_of: Callable[[Path], elastic.Streams], collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
    """streams_of: those of the files in a folder"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--lose", type=int)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--write", action="store_true", help="the files, below which the run lies")
    parser.add_argument("--virtual-workers", type=int, default=6)
    parser.add_argument("--num-workers", type=int, default=0, help="0: streams are read in the training process")
    options = parser.parse_args()

    if options.write:
        write_lines(Path(options.url).parent)
    elastic.seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    streams = streams_of(Path(options.url).parent)
    run: Any
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=streams,
        data=elastic.Data(collate_fn=collate_fn, num_workers=options.num_workers),
        batch_size=14,
        virtual_workers=options.virtual_workers,
        steps=options.steps,
        save_every=3,
        compute=elastic.Compute(mode=options.mode),
    ) as run:
        if options.lose is not None:
            lose(options.lose, run)
        for step in run.steps() if options.plain else run:
            for points, labels in step:
                if options.plain:
                    loss: Any = F.cross_entropy(model(points), labels)
                    loss.backward()
                else:
                    step.backward(F.cross_entropy(model(points), labels, reduction="sum"), len(labels))
            if options.plain:
                optimizer.step()
                optimizer.zero_grad()
            if run.world_size < options.unhurried:
                time.sleep(0.1)  # a run of few steps is to see its lost workers replaced
    positions = torch.tensor([*streams.state_dict()["positions"].encode()])
    state = elastic_checkpoint.digest({"model": model, "optimizer": optimizer, "streams": positions})
    os.write(1, f"took part: {state}\n".encode())  # at once: print writes piece by piece


if __name__ == "__main__":
    main(of_lines)

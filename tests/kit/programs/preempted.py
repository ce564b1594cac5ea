"""A loop of one's own that only reads until it is told to leave. `stepped` is there once all ranks have agreed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import elastic


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            time.sleep(0.05)
            yield 1


def main() -> None:
    folder = Path(sys.argv[1])
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    with elastic.Preemption(note=folder / "notes" / "left") as preemption:
        for _ in DataLoader(Endless(), num_workers=1):
            if preemption.agreed():
                break
            (folder / "stepped").touch()
        if dist.is_initialized():
            dist.destroy_process_group()
        preemption.exit(int(sys.argv[2]))


if __name__ == "__main__":
    main()

"""A loop of one's own that does nothing until it is told to leave. `stepped` is there once all ranks have agreed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

import elastic


def main() -> None:
    folder = Path(sys.argv[1])
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    with elastic.Preemption(note=folder / "notes" / "left") as preemption:
        while not preemption.agreed():
            (folder / "stepped").touch()
            time.sleep(0.05)
        if dist.is_initialized():
            dist.destroy_process_group()
        preemption.exit(int(sys.argv[2]))


if __name__ == "__main__":
    main()

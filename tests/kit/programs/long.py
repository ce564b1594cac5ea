"""A run that takes its time, for tests that interrupt it: python -m tests.kit.programs.long URL STEPS FOLDER [--stuck].

Rank 0 leaves FOLDER/step-<i> after step i. --stuck: in step 3 every worker blocks outside Python until it is killed.
What handled signals before and after the run is printed at the end.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint


def main() -> None:
    url, steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    elastic.seed(0)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], signal.set_wakeup_fd(-1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
    data = TensorDataset(torch.randn(240, 4), torch.arange(240) % 2)
    try:
        with elastic.Run(
            url,
            model=model,
            optimizer=torch.optim.AdamW(model.parameters()),
            dataset=data,
            batch_size=24,
            virtual_workers=4,
            steps=steps,
            save_every="1h",
        ) as run:
            for step in run:
                for x, y in step:
                    step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
                if run.is_coordinator:
                    (folder / f"step-{step.index}").touch()
                if "--stuck" in sys.argv and step.index == 3:
                    mutex = ctypes.create_string_buffer(64)  # zeros: PTHREAD_MUTEX_INITIALIZER
                    libc = ctypes.CDLL(None)
                    libc.pthread_mutex_lock(mutex)
                    (folder / f"stuck-{run.rank}").touch()
                    libc.pthread_mutex_lock(mutex)  # for ever; no signal interrupts it
            if run.is_coordinator:
                print(f"finished {elastic_checkpoint.digest(model)}")
    finally:
        after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], signal.set_wakeup_fd(-1)
        print("handlers are as they were" if after == before else f"handlers changed: {before} {after}")


if __name__ == "__main__":
    main()

"""A run on several nodes, each with one worker, that wait until all of them are told to leave:

    elastic run … -m tests.kit.programs.shares URL FOLDER --nodes N [--storage JSON] [--odd] [--warm-after SECONDS]
        [--save-every N] [--waits-at N]

Its state has some forty objects. Workers say at the end of a step how many share it (FOLDER/shared-by-2). Once it is N,
each says that it waits (FOLDER/waits-RANK), and goes on when it has been told. --odd: what this one would save is
another state in one object.
--warm-after: a coordinator that is so old has a writer process. --save-every: so many steps. --waits-at: not before the
step of that index.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import elastic
import elastic_checkpoint
from elastic.loop.storage import saver
from tests.kit.programs.leaves import wait_for_notice

SHARD_BYTES = 20_000
WIDTH = 64_000


class Counts:
    """In extra=, with a tensor of its own."""

    def __init__(self, odd: bool) -> None:
        self._odd = odd
        self._counts = torch.arange(SHARD_BYTES // 8)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self._counts + int(self._odd)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = state["counts"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--storage", type=json.loads, help="storage_options, as JSON")
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--warm-after", type=float)
    parser.add_argument("--save-every", type=int, default=10**9)
    parser.add_argument("--waits-at", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    defaults = elastic_checkpoint.Checkpointer.__init__.__kwdefaults__
    assert defaults is not None
    defaults["shard_bytes"] = SHARD_BYTES

    if options.warm_after is not None:
        saver._WARM_AFTER_S = options.warm_after

    elastic.seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        extra={"counts": Counts(options.odd)},
        dataset=torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.randn(64, 1)),
        batch_size=16,
        virtual_workers=4,
        steps=options.steps,
        save_every=options.save_every,
        storage_options=options.storage,
    ) as run:
        for step in run:
            for points, values in step:
                step.backward(((model(points) - values) ** 2).sum(), len(values))
            if options.nodes:
                (options.folder / f"shared-by-{run.world_size}").touch()
            if run.world_size == options.nodes and run.step_index >= options.waits_at:
                (options.folder / f"waits-{run.rank}").touch()
                wait_for_notice(run)
            elif options.nodes:
                time.sleep(0.2)
    if run.is_coordinator:
        sys.stdout.write(f"ends at step {run.step_index} with {elastic_checkpoint.digest(model)}\n")


if __name__ == "__main__":
    main()

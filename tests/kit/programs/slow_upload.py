"""A run whose state has some forty objects, saved every two steps: in the fourth it waits until it is told to leave.

    elastic run … -m tests.kit.programs.slow_upload URL FOLDER STORAGE

It says so by FOLDER/waits. STORAGE: storage_options, as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import elastic
import elastic_checkpoint
from elastic.loop.storage import saver
from tests.kit.programs.leaves import wait_for_notice

SHARD_BYTES = 20_000
WIDTH = 64_000
WAITS_AT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("storage", type=json.loads)
    options = parser.parse_args()
    defaults = elastic_checkpoint.Checkpointer.__init__.__kwdefaults__
    assert defaults is not None
    defaults["shard_bytes"] = SHARD_BYTES
    saver._WARM_AFTER_S = 0.0  # its saves are made by a writer process from the first one on

    elastic.seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        dataset=torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.randn(64, 1)),
        batch_size=16,
        virtual_workers=4,
        steps=10_000,
        save_every=2,
        saving=elastic.Saving(storage_options=options.storage),
    ) as run:
        for step in run:
            for points, values in step:
                step.backward(((model(points) - values) ** 2).sum(), len(values))
            if run.step_index >= WAITS_AT:
                (options.folder / "waits").touch()
                wait_for_notice(run)


if __name__ == "__main__":
    main()

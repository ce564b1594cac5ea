"""A script that compiles a product of matrices, for which no C++ is made. Shares have 14 and 15 examples.

It ends with a line of JSON: torch's counters, the weights, whether its compiler was imported, and how often a file or
folder of compiled code in the run's storage was opened.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.loop.compiled import cache
from elastic.loop.compiled.storage import FOLDER
from elastic_checkpoint.testing import Faults, Hang, Plan

BATCH, STEPS_MAX = 29, 200
OPENING = ("open", "os.scandir", "os.listdir")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--uncompiled", action="store_true")
    parser.add_argument("--without-cache", action="store_true")
    parser.add_argument("--unchecked", action="store_true", help="no share is passed by two workers")
    parser.add_argument("--kernels", action="store_true", help="with something that C++ is made for")
    parser.add_argument("--slow-until", type=Path, help="goes slowly until this file is there")
    parser.add_argument("--forgetful", action="store_true", help="calls torch._dynamo.reset() before steps 0 and 2")
    parser.add_argument("--hangs", help="name of an object that whoever reads waits for, for an hour")
    parser.add_argument("--read-within", type=float, default=cache.READ_WITHIN_S)
    options = parser.parse_args()
    cache.READ_WITHIN_S = options.read_within
    opened: list[object] = []
    sys.addaudithook(
        lambda event, given: opened.append(given) if event in OPENING and FOLDER in str(given[0]) else None
    )

    elastic.seed(3)
    dataset = TensorDataset(torch.randn(BATCH * STEPS_MAX, 8), torch.arange(BATCH * STEPS_MAX) % 3)
    model = nn.Sequential(nn.Linear(8, 3, bias=False), nn.GELU() if options.kernels else nn.Identity())
    forward = model if options.uncompiled else torch.compile(model)
    url, given = options.url, dict[str, Any]()
    if options.hangs:
        url, given = Faults(Plan(Hang(3600, path=f"*/{options.hangs}", on="read"))).around(url, {"auto_mkdir": True})
    with elastic.Run(
        url,
        saving=elastic.Saving(storage_options=given),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=dataset,
        batch_size=BATCH,
        virtual_workers=2,
        steps=options.steps,
        compute=elastic.Compute(mode=options.mode, compile_cache=not options.without_cache),
        save_every="1h",
        checks=elastic.Checks(cross_check=None if options.unchecked else 0.0),
    ) as run:
        if options.forgetful:
            torch._dynamo.reset()
        for step in run:
            if options.forgetful and step.index == 2:
                torch._dynamo.reset()
            for points, labels in step:
                loss = F.cross_entropy(forward(points), labels, reduction="sum")
                step.backward(loss, count=len(labels))
            if options.slow_until is not None and not options.slow_until.exists():
                time.sleep(0.1)
        tells = run.is_coordinator
    if tells:
        print(json.dumps({"opened": len(opened), **_about(model)}), flush=True)


def _about(model: nn.Module) -> dict[str, Any]:
    counters = sys.modules["torch._dynamo.utils"].counters
    return {
        "weights": hashlib.sha256(model.state_dict()["0.weight"].numpy().tobytes()).hexdigest(),
        "hits": counters["aot_autograd"]["autograd_cache_hit"],
        "misses": counters["aot_autograd"]["autograd_cache_miss"] + counters["inductor"]["fxgraph_cache_miss"],
        "bypasses": counters["aot_autograd"]["autograd_cache_bypass"] + counters["inductor"]["fxgraph_cache_bypass"],
        "imported": sorted(
            {"torch._inductor.codecache", "torch._functorch._aot_autograd.autograd_cache"} & {*sys.modules}
        ),
    }


if __name__ == "__main__":
    main()

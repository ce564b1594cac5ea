"""What a save costs training on one GPU: python -m tests.gpu.saves [cpu]

The state of a GPT of 124 M parameters with AdamW, 1.5 GB, saved from the GPU as steps go on. Prints medians: what one
copy of as many bytes into pinned memory takes; how long `save` takes to return, where all is copied at once and where
weights may be copied beside the step; and how much longer six steps take with a save among them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

import torch

from elastic_checkpoint import Checkpointer
from tests.gpu.throughput import Gpt

ROUNDS, STEPS = 6, 6


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    wait: Any = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    model = (Gpt() if device.type == "cuda" else Gpt(tokens=256, width=192, layers=2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(256, (16, 1024 if device.type == "cuda" else 64), device=device)

    def computed() -> None:
        """A step but for its update."""
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(tokens).float().logsumexp(-1).mean()
        loss.backward()

    computed()
    optimizer.step()
    state = {"model": model, "optimizer": optimizer}
    steady = [*model.parameters(), *(t for one in optimizer.state.values() for t in one.values() if t.ndim)]
    nbytes = sum(tensor.nbytes for tensor in steady)
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.ones(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def timed(save: bool, lends: bool) -> tuple[float, float]:
        """Seconds in `save`, and of some steps, one of which has it. The host runs ahead of the GPU, as in training."""
        wait()
        begun_s = time.perf_counter()
        call_s, saving = 0.0, None
        for step in range(STEPS):
            if save and step == STEPS // 2:
                number[0] += 1
                called_s = time.perf_counter()
                saving = runs.save(number[0], state, blocking=False, steady=steady if lends else ())
                call_s = time.perf_counter() - called_s
            computed()
            if saving is not None:
                saving.staged()
            optimizer.step()
        wait()
        ended_s = time.perf_counter()
        if saving is not None:
            saving.wait(300)
        return call_s, ended_s - begun_s

    number = [0]
    with tempfile.TemporaryDirectory() as folder, Checkpointer(folder, keep=1) as runs:
        runs.save(0, state, blocking=False).wait(300)
        copies: list[float] = []
        alone: list[float] = []
        ways: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(ROUNDS):
            wait()
            begun_s = time.perf_counter()
            target.copy_(source, non_blocking=True)
            wait()
            copies.append(time.perf_counter() - begun_s)
            alone.append(timed(False, False)[1])
            for lends in (False, True):
                ways[lends].append(timed(True, lends))
    copy_s, step_s = statistics.median(copies), statistics.median(alone)
    print(f"{nbytes / 1e9:.2f} GB, one copy {copy_s * 1e3:.1f} ms, a step {step_s / STEPS * 1e3:.1f} ms")
    for lends, name in ((False, "at once"), (True, "beside the step")):
        call_s = statistics.median(call for call, _ in ways[lends])
        lost_s = statistics.median(step for _, step in ways[lends]) - step_s
        print(
            f"copied {name}: save returns after {call_s * 1e3:.1f} ms ({call_s / copy_s:.2f} copies), "
            f"training takes {lost_s * 1e3:.1f} ms longer ({lost_s / copy_s:.2f} copies)"
        )


if __name__ == "__main__":
    main()

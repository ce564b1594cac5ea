"""What a norm costs that is the same at every cut: python -m tests.benchmarks.exact_norm [--rounds 15]

One of four workers that share a model, on one thread: it passes a quarter of a step's batch, and holds a quarter of
each parameter's rows. In turns it takes a step (forward, backward, AdamW), torch's norm of its gradients, and the exact
one. Prints processor time, medians, of a character-level GPT and an MLP, and the exact norm's part of the GPT's step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import nn

from elastic.state.exact_norm import Pieces, norm
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.workloads import Workload, workloads

MEMBERS = 4
GOAL = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    members = {name: Member(workloads()[name]) for name in ("gpt", "mlp")}
    took: dict[str, list[dict[str, float]]] = defaultdict(list)
    with interruptible():
        for _ in progress("rounds", range(options.rounds)):
            for name, member in members.items():
                ways = {"step": member.step, "torch": member.torch_norm, "exact": member.exact_norm}
                took[name].append({way: processor_s(of) for way, of in ways.items()})
    parts = {}
    for name, rounds in took.items():
        step, plain, exact = (statistics.median(one[way] for one in rounds) for way in ("step", "torch", "exact"))
        parts[name] = statistics.median(one["exact"] / one["step"] for one in rounds)
        print(
            f"{name}: a step {step * 1e3:.0f} ms; the norm of {members[name].elements:,} elements "
            f"{exact * 1e3:.2f} ms, {exact / plain:.1f} times torch's, {parts[name]:.2%} of a step"
        )
    if "gpt" not in parts:
        return 1  # interrupted before there was a figure
    print(f"the goal is {GOAL:.0%} of the GPT's step")
    return 0 if parts["gpt"] < GOAL else 1


class Member:
    """One of the workers that share a model."""

    def __init__(self, workload: Workload) -> None:
        torch.manual_seed(0)
        self._workload, self._model = workload, workload.make()
        self._batch = workload.data[: workload.batch_size // MEMBERS]
        self._held = [nn.Parameter(part(parameter).clone()) for parameter in self._model.parameters()]
        self._optimizer = torch.optim.AdamW(self._held)
        self.elements = sum(held.numel() for held in self._held)

    def step(self) -> None:
        self._model.zero_grad()
        self._workload.loss(self._model, *self._batch).backward()  # type: ignore[no-untyped-call]
        for held, parameter in zip(self._held, self._model.parameters(), strict=True):
            assert parameter.grad is not None
            held.grad = part(parameter.grad)
        self._optimizer.step()

    def torch_norm(self) -> None:
        float(torch.nn.utils.get_total_norm(self._gradients()))

    def exact_norm(self) -> None:
        pieces = Pieces(self._gradients(), torch.device("cpu"))
        float(norm(largest := pieces.largest(), pieces.squares(largest)))

    def _gradients(self) -> list[torch.Tensor]:
        return [held.grad for held in self._held if held.grad is not None]


def part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rows that torch's `fully_shard` gives the first member."""
    return tensor.detach().chunk(MEMBERS)[0]


def processor_s(of: Callable[[], None]) -> float:
    begun_s = time.process_time()
    of()
    return time.process_time() - begun_s


if __name__ == "__main__":
    harness.run(main)

"""A worker whose update is gone: it holds the state of a step before."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene
from elastic.drill.faults.silent import SilentFault


@dataclass(frozen=True)
class StaleState(SilentFault):
    """The worker that has this rank at that moment holds again, once the step in hand is applied, the weights and what
    its optimizers kept for them as they are now. It takes part in what follows as if nothing were the matter."""

    kind = "stale_state"
    short = "w{worker} holds the state of before"
    sentence = "worker {worker} holds the state of before the step that it has applied"
    flags = (Flag("stale-state", "a worker that has applied a step holds the state of before"),)
    usual_phase = "update"

    def strike(self, scene: Scene) -> None:
        import torch

        optimizers = scene.run.optimizers.values()
        weights = [one for made in optimizers for group in made.param_groups for one in group["params"]]
        kept = [one for made in optimizers for state in made.state.values() for one in state.values()]
        held = [one for one in (*weights, *kept) if isinstance(one, torch.Tensor)]
        before = [(tensor, tensor.detach().clone()) for tensor in held]

        def goes_back() -> None:
            for tensor, was in before:
                tensor.data.copy_(was)

        scene.at_next("applied", goes_back)

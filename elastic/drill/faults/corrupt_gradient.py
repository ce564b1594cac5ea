"""A wrong gradient of one share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Flag, Scene
from elastic.drill.faults.silent import SilentFault


@dataclass(frozen=True)
class CorruptGradient(SilentFault):
    """A bit of a gradient changes in the next backward pass of the worker that has this rank at that moment, before it
    is added to anything: all workers apply the same wrong sum."""

    kind = "corrupt_gradient"
    short = "flip a bit of a gradient of w{worker}"
    sentence = "a bit of a gradient changes in worker {worker}"
    flags = (Flag("corrupt-gradient", "a bit of a share's gradient changes before it is added to anything"),)
    found_as = ("ComputesWrongly", "NotLetIn", "StepError")
    usual_phase = "backward"
    checks_shares = True

    def strike(self, scene: Scene) -> None:
        """The first gradient that comes and is not zero everywhere, ahead of all others who ask for it."""
        import torch

        from elastic.drill.faults.bits import flip

        hooks: list[Any] = []

        def arrived(gradient: torch.Tensor) -> torch.Tensor | None:
            if not hooks or not bool(gradient.any()):
                return None
            while hooks:
                hooks.pop().remove()
            other = gradient.clone(memory_format=torch.contiguous_format)
            flip(other)
            return other

        groups = (group for optimizer in scene.run.optimizers.values() for group in optimizer.param_groups)
        weights = [weight for group in groups for weight in group["params"] if weight.requires_grad]
        hooks += [weight.register_hook(arrived) for weight in weights]

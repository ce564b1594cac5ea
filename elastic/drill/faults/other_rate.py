"""One worker trains by another configuration than the others."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene
from elastic.drill.faults.silent import SilentFault


@dataclass(frozen=True)
class OtherRate(SilentFault):
    """The learning rates of the worker that has this rank at that moment are twice as high from then on, as after an
    edit of the script, or of its settings, on one machine alone."""

    kind = "other_rate"
    short = "double the learning rate of w{worker}"
    sentence = "the learning rate of worker {worker} alone is twice as high"
    flags = (Flag("other-rate", "one worker's learning rate is another one than the others'"),)
    found_as = ("CollectiveMismatch",)
    usual_phase = "applied"

    def strike(self, scene: Scene) -> None:
        for optimizer in scene.run.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 2

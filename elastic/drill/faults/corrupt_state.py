"""A bit of what one worker holds is another one: of a weight, or of what an optimizer keeps for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Flag, Scene
from elastic.drill.faults.silent import SilentFault
from elastic.errors import ConfigError

if TYPE_CHECKING:
    import torch

_OF = {"weight": "a weight", "moment": "what the optimizer keeps for a weight"}


@dataclass(frozen=True)
class CorruptState(SilentFault):
    """A bit changes in the memory of the worker that has this rank at that moment, in its largest weight, or in the
    largest tensor that an optimizer keeps. The fault waits until there is one.

    of  "weight" or "moment"
    """

    of: str

    kind = "corrupt_state"
    flags = (
        Flag("corrupt-weight", "a bit of a weight changes in one worker's memory", {"of": "weight"}),
        Flag("corrupt-moment", "a bit of what an optimizer keeps (Adam's moments) changes there", {"of": "moment"}),
    )
    usual_phase = "applied"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in _OF:
            raise ConfigError(f"CorruptState: of={self.of!r}; it is {' or '.join(_OF)}")

    def __str__(self) -> str:
        return f"{self.when}: flip a bit of a {self.of} of w{self.worker}"

    def in_words(self) -> str:
        return f"a bit of {_OF[self.of]} changes in the memory of worker {self.worker}"

    def possible(self, scene: Scene) -> bool:
        return super().possible(scene) and next(self._tensors(scene), None) is not None

    def strike(self, scene: Scene) -> None:
        from elastic.drill.faults.bits import flip, largest

        tensor = largest(self._tensors(scene))
        assert tensor is not None
        flip(tensor)

    def _tensors(self, scene: Scene) -> Iterator[torch.Tensor]:
        import torch

        for optimizer in scene.run.optimizers.values():
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    kept = optimizer.state.get(weight, {}).values()
                    found = [weight] if self.of == "weight" else [one for one in kept if isinstance(one, torch.Tensor)]
                    yield from (one for one in found if one.is_floating_point() and one.numel())

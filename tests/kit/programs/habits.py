"""What people do in training scripts beside the plain loop: each habit is a class that varied.py puts into its run.

    model    the network it trains, made over
    loss     added to the loss in the inner loop's body
    start    in the with-block, before the first step
    before   a step, in the outer loop; after: it; apply: part of its update

A habit changes state where a script may: in the update, and between steps. Its run must end with the same bits at any
world size, through any faults, and when it is resumed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elastic

WIDTH = 16


class Habit:
    """extra  what must survive for it; rules: Run's of buffers"""

    extra: Mapping[str, Any] = {}
    rules: Mapping[str, str] = {}

    def model(self, model: nn.Sequential) -> nn.Sequential:
        return model

    def optimized(self, model: nn.Module) -> list[nn.Parameter]:
        """What the optimizer gets at the start."""
        return list(model.parameters())

    def loss(self, model: nn.Module, points: torch.Tensor, scores: torch.Tensor) -> torch.Tensor | float:
        return 0.0

    def start(self, run: elastic.Run) -> None: ...

    def before(self, run: elastic.Run, step: elastic.Step) -> None: ...

    def after(self, run: elastic.Run, step: elastic.Step) -> None: ...

    def apply(self, run: elastic.Run, step: elastic.Step) -> None: ...


class Unfreezing(Habit):
    """The first layer is trained from the sixth step on: said once, between two steps."""

    def model(self, model: nn.Sequential) -> nn.Sequential:
        model[0].requires_grad_(False)
        return model

    def after(self, run: elastic.Run, step: elastic.Step) -> None:
        if step.index == 5:
            run.model[0].requires_grad_(True)


class Freezing(Habit):
    """One layer after the other is trained, three steps each: said again before every step."""

    def before(self, run: elastic.Run, step: elastic.Step) -> None:
        layers = [layer for layer in run.model if list(layer.parameters())]
        for number, layer in enumerate(layers):
            layer.requires_grad_(number == len(layers) - 1 or number == step.index // 3 % len(layers))


class LaterGroup(Habit):
    """The first layer joins the optimizer after the sixth step, in a parameter group of its own."""

    def model(self, model: nn.Sequential) -> nn.Sequential:
        model[0].requires_grad_(False)
        return model

    def optimized(self, model: nn.Module) -> list[nn.Parameter]:
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def after(self, run: elastic.Run, step: elastic.Step) -> None:
        if step.index == 5:
            run.model[0].requires_grad_(True)
            (optimizer,) = run.optimizers.values()
            optimizer.add_param_group({"params": list(run.model[0].parameters()), "lr": 1e-3})


class Langevin(Habit):
    """Noise on the weights in each update (SGLD), and draws of all three generators after it, which are kept."""

    def __init__(self) -> None:
        self._drawn = Kept()
        self.extra = {"drawn": self._drawn}

    def apply(self, run: elastic.Run, step: elastic.Step) -> None:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)

    def after(self, run: elastic.Run, step: elastic.Step) -> None:
        self._drawn.values += [torch.rand(()).item(), random.random(), float(np.random.rand())]


class Teacher(Habit):
    """A mean teacher in train mode, with BatchNorm of its own, which the student is to agree with."""

    def __init__(self) -> None:
        self._teacher: nn.Module = nn.Identity()

    def model(self, model: nn.Sequential) -> nn.Sequential:
        made = nn.Sequential(*(nn.BatchNorm1d(WIDTH) if isinstance(m, nn.LayerNorm) else m for m in model))
        self._teacher = copy.deepcopy(made).requires_grad_(False)
        self.extra = {"teacher": self._teacher}
        return made

    def loss(self, model: nn.Module, points: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._teacher.train()
        return F.mse_loss(scores, self._teacher(points), reduction="sum")

    def apply(self, run: elastic.Run, step: elastic.Step) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self._teacher.parameters(), run.model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


class Observed(nn.Module):
    """Keeps the range of what passes, in eval mode as well, as observers of quantization do; and a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.low: torch.Tensor
        self.high: torch.Tensor
        self.phases: torch.Tensor
        self.register_buffer("low", torch.zeros(WIDTH))
        self.register_buffer("high", torch.zeros(WIDTH))
        self.register_buffer("phases", torch.polar(torch.ones(WIDTH), torch.linspace(0, 1, WIDTH)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = x.detach()
        self.low.lerp_(seen.amin(dim=0), 0.1)
        self.high.lerp_(seen.amax(dim=0), 0.1)
        return (x - self.low) / (self.high - self.low + 1) * self.phases.real


class Observer(Habit):
    rules: Mapping[str, str] = {"2.low": "mean", "2.high": "mean"}

    def model(self, model: nn.Sequential) -> nn.Sequential:
        return _inserted(model, Observed())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by: torch.Tensor
        self.register_buffer("by", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Reassigned(Habit):
    """A buffer that each update, and now and then the code between steps, assigns anew."""

    def model(self, model: nn.Sequential) -> nn.Sequential:
        return _inserted(model, Scaled())

    def apply(self, run: elastic.Run, step: elastic.Step) -> None:
        run.model[2].by = run.model[2].by * 0.99

    def after(self, run: elastic.Run, step: elastic.Step) -> None:
        if step.index % 4 == 3:
            run.model[2].by = run.model[2].by + 0.01


class Hooked(Habit):
    """Gradients are clipped where they arise, by hooks on the parameters, which come before the run and within it."""

    def model(self, model: nn.Sequential) -> nn.Sequential:
        for parameter in model[0].parameters():
            parameter.register_hook(_clamped)  # type: ignore[no-untyped-call]
        return model

    def start(self, run: elastic.Run) -> None:
        for parameter in run.model[-1].parameters():
            parameter.register_hook(_clamped)


class Annealed(nn.Module):
    """What its forward pass gives follows from a plain attribute, its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.by = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    def get_extra_state(self) -> float:
        return self.by

    def set_extra_state(self, state: float) -> None:
        self.by = state


class Annealing(Habit):
    """A module's extra state falls in each update, and the probability of dropout with the number of steps."""

    def model(self, model: nn.Sequential) -> nn.Sequential:
        return _inserted(model, Annealed())

    def before(self, run: elastic.Run, step: elastic.Step) -> None:
        dropout = next(module for module in run.model if isinstance(module, nn.Dropout))
        dropout.p = 0.2 * 0.95**step.index

    def apply(self, run: elastic.Run, step: elastic.Step) -> None:
        run.model[2].by *= 0.98


class Compiled(Habit):
    """The model's forward pass is compiled. Shares are of two sizes, and the last step of an epoch has a third."""

    def model(self, model: nn.Sequential) -> nn.Sequential:
        model.compile()
        return model


def _inserted(model: nn.Sequential, module: nn.Module) -> nn.Sequential:
    first, norm, *rest = model
    return nn.Sequential(first, norm, module, *rest)


def _clamped(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(-0.1, 0.1)


class Kept:
    """A list that survives."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values = list(state["values"])


HABITS: dict[str, type[Habit]] = {
    "unfreezing": Unfreezing,
    "freezing": Freezing,
    "later-group": LaterGroup,
    "langevin": Langevin,
    "teacher": Teacher,
    "observer": Observer,
    "reassigned": Reassigned,
    "hooked": Hooked,
    "annealing": Annealing,
    "compiled": Compiled,
}

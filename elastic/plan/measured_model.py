"""The small model that `elastic plan --measure` times where none is named: a perceptron of a million parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

_WIDTH, _BATCH = 512, 256


def perceptron() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return the model, and what computes the loss of a whole batch."""
    model = nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())), nn.Linear(_WIDTH, 10)
    )
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(_BATCH, _WIDTH, generator=draw)
    y = torch.randint(0, 10, (_BATCH,), generator=draw)
    return model, lambda: nn.functional.cross_entropy(model(x), y)

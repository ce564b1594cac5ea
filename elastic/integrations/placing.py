"""What frameworks ask before there is a run: this worker's device, and how many steps an epoch has."""

from __future__ import annotations

import os
from typing import Any

import torch

from elastic.data.order import Order, Shuffled, Sizes


def own_device(given: torch.device | str) -> torch.device:
    """The same, or of "cuda" this worker's own GPU; workers beyond their number share them."""
    device = torch.device(given)
    if str(device) == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % max(1, torch.cuda.device_count()))
    return device


def steps_per_epoch(dataset: Any, *, batch_size: int, drops: bool, order: Order | None) -> int:
    """As DataPlan counts them. Raises ConfigError for an order that does not fit."""
    last_batch = "drop" if drops else "short"
    sizes = Sizes(dataset_length=len(dataset), batch_size=batch_size, last_batch=last_batch, seed=0)
    length = (order or Shuffled()).over(sizes).length
    return length // batch_size if drops else -(-length // batch_size)

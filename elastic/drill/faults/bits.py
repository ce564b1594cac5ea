"""Changes one bit where a tensor lies, as a damaged memory does: torch does not notice that anything was written."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch


def flip(tensor: torch.Tensor) -> None:
    """Change the highest mantissa bit of the largest element; without floats, the lowest bit of the first element."""
    flat = tensor.data.view(-1) if tensor.is_contiguous() else tensor.data
    at = int(flat.abs().argmax()) if flat.is_floating_point() else 0
    element = flat.flatten()[at].clone()
    if element.is_floating_point():
        bits = element.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[element.element_size()])
        element = (bits ^ (1 << round(-math.log2(torch.finfo(element.dtype).eps)) - 1)).view(element.dtype)
    else:
        element = ~element if element.dtype is torch.bool else element ^ 1
    flat[torch.unravel_index(torch.tensor(at), flat.shape)] = element


def with_a_flip(batch: Any) -> tuple[Any, bool]:
    """Return a batch that is equal but for one bit of its first tensor, and whether it has one."""
    if isinstance(batch, torch.Tensor):
        if not batch.numel():
            return batch, False
        other = batch.detach().clone(memory_format=torch.contiguous_format)
        flip(other)
        return other, True
    if not isinstance(batch, (Mapping, list, tuple)):
        return batch, False
    entries = [*batch.values()] if isinstance(batch, Mapping) else [*batch]
    for at, entry in enumerate(entries):
        entries[at], found = with_a_flip(entry)
        if found:
            return _like(batch, entries), True
    return batch, False


def _like(batch: Any, entries: list[Any]) -> Any:
    """Return a container as `batch` is one, with these entries."""
    if isinstance(batch, Mapping):
        other = copy.copy(batch)  # a trainer's own kind of dict stays one
        other.update(zip(batch, entries, strict=True))  # type: ignore[attr-defined]  # a Mapping that has none is rare
        return other
    return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)

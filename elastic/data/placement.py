"""Moves a batch of any shape: to a device, or into page-locked memory.

Containers keep their type and what is no tensor passes through. An object that brings a method of the right
name (a packed sequence, a graph, a tokenizer's encoding) is asked to move itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def move(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return `batch` with its tensors on `device`; `non_blocking` lets copies from pinned memory run by themselves."""
    return _each(batch, lambda tensor: tensor.to(device, non_blocking=non_blocking), "to", device)


def pin(batch: Any) -> Any:
    """Return `batch` with its CPU tensors in page-locked memory, from which a GPU copies without the host."""
    return _each(batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory(), "pin_memory")


def _each(batch: Any, change: Callable[[torch.Tensor], torch.Tensor], method: str, *arguments: Any) -> Any:
    """Change each tensor of a batch; an object that has such a method moves itself."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if callable(getattr(batch, method, None)):
        return getattr(batch, method)(*arguments)
    if isinstance(batch, Mapping):
        return _like(batch, {key: _each(value, change, method, *arguments) for key, value in batch.items()})
    if isinstance(batch, tuple | list):
        changed = [_each(value, change, method, *arguments) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else _like(batch, changed)
    return batch


def _like(container: Any, values: dict[Any, Any] | list[Any]) -> Any:
    """Return a container of the same type where its constructor takes one, else a plain dict, tuple or list."""
    try:
        return type(container)(values)
    except TypeError:
        return tuple(values) if isinstance(container, tuple) else values

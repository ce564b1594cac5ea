"""Clipping gradients by value where there are none yet: nothing happens, as where they are clipped by their norm.

Until a step's last share the gradients of a plain loop are None, and its own code clips all the same. torch 2.13 asks
its groups of tensors to be not empty there.
"""

from __future__ import annotations

from typing import Any

from torch.nn.utils import clip_grad

_group = clip_grad._group_tensors_by_device_and_dtype


def let_nothing_be_clipped() -> None:
    """Have `clip_grad_value_` pass over parameters without gradients from now on. May be called again."""
    clip_grad._group_tensors_by_device_and_dtype = _grouped  # type: ignore[assignment]


def _grouped(lists: list[list[Any]], *args: Any, **named: Any) -> Any:
    return _group(lists, *args, **named) if any(lists) else {}

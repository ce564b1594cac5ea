"""A batch's tensors on the CPU begin where torch's own memory does: at a multiple of 64 bytes.

Kernels sum in another order where memory begins otherwise (`linear` of MKL, of a float32 array that begins 4 bytes
later: other bits in most shapes, measured 2026-11-29 with torch 2.13). A tensor made of a slice of NumPy's array begins
anywhere, and at a page where it came from a loader process: so the bits would hang on `num_workers`, and on malloc.

Looked into are tuples, lists and dicts, and what an object in them has in its attributes. Where nothing lies apart all
is given as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch

_BYTES = 64  # where torch's own memory begins
_CLOSED = (type, ModuleType, FunctionType, torch.nn.Module)


def aligned(batch: Any, *, into_objects: bool = True) -> Any:
    """Return the same values, in containers of the same types, with CPU tensors where torch's own memory begins."""
    if isinstance(batch, torch.Tensor):
        on_cpu = batch.is_cpu and batch.layout is torch.strided
        return _moved(batch) if on_cpu and batch.data_ptr() % _BYTES else batch
    if isinstance(batch, dict):
        changed = _changed(dict.items(batch), into_objects)  # whatever a kind of its own makes of that
        return _copied(batch, changed) if changed else batch
    if isinstance(batch, (tuple, list)):
        changed = _changed(enumerate(batch), into_objects)
        return _with_items(batch, changed) if changed else batch
    variables = getattr(batch, "__dict__", None) if into_objects else None
    if type(variables) is dict and not isinstance(batch, _CLOSED):
        changed = _changed(variables.items(), False)  # an object within it may be as large as a data set
        if changed:
            batch = copy.copy(batch)
            vars(batch).update(changed)
    return batch


def _changed(items: Iterable[tuple[Any, Any]], into_objects: bool) -> dict[Any, Any]:
    """Return by key the values that `aligned` replaces."""
    changed = {}
    for key, value in items:
        now = aligned(value, into_objects=into_objects)
        if now is not value:
            changed[key] = now
    return changed


def _copied(mapping: dict[Any, Any], changed: dict[Any, Any]) -> dict[Any, Any]:
    mapping = copy.copy(mapping)
    mapping.update(changed)
    return mapping


def _with_items(sequence: Any, changed: dict[int, Any]) -> Any:
    """Return a sequence of the same type with the changed items in their places."""
    items = [changed.get(at, item) for at, item in enumerate(sequence)]
    if isinstance(sequence, list):
        sequence = copy.copy(sequence)
        sequence[:] = items
        return sequence
    return type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in memory of its own, with the same strides where that can be."""
    given = tensor.detach()
    moved = given.clone()
    if (
        moved.stride() != given.stride() and type(given) is torch.Tensor and given.numel()
    ):  # rows with gaps, or that repeat
        length = 1 + sum((size - 1) * stride for size, stride in zip(given.shape, given.stride(), strict=True))
        moved = given.as_strided((length,), (1,)).clone().as_strided(given.shape, given.stride())
    return moved.requires_grad_(tensor.requires_grad)

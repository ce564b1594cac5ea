"""An object's state in a form that is the same wherever it means the same: to compare what several workers hold.

A state that has travelled may hold 1.0 for 1, a list for a tuple, a number for a tensor of one; its tensors may lie
otherwise in memory, and be several where they were one under two names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from elastic.state.bits import digest_of

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_LARGEST_EXACT = 1 << 53  # of the integers that a float holds
_LOOKED_AT = 4096  # elements of an array
_DEPTH = 32


def is_readable(value: Any) -> bool:
    """Return whether a value is a tensor whose bytes lie where its layout says: not freed, sparse, nested or meta."""
    return (
        type(value) in PLAIN_TENSORS
        and value.layout is torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested)
        and (value.numel() == 0 or _end(value) <= value.untyped_storage().nbytes())
    )


def normal_form(value: Any, take: Callable[[torch.Tensor], None], depth: int = _DEPTH) -> Any:
    """Return a value's normal form, as JSON values. `take` gets tensors of several elements, in the order of paths."""
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return _number(value)
    if value is None or isinstance(value, str):
        return value
    if depth and isinstance(value, Mapping):
        entries = sorted(((str(key), one) for key, one in value.items()), key=lambda entry: entry[0])
        return {key: normal_form(one, take, depth - 1) for key, one in entries}
    if depth and isinstance(value, (list, tuple)):
        return [normal_form(one, take, depth - 1) for one in value]
    if isinstance(value, torch.Tensor):
        if not is_readable(value):
            return type(value).__name__
        if value.numel() == 1 and value.is_cpu and not value.is_complex():
            return _number(value.item())
        take(value)
        return [str(value.dtype), *value.shape]
    if isinstance(value, np.ndarray):
        if value.size == 1 and value.dtype.kind in "biuf":
            return _number(value.item())
        some = value.reshape(-1)[:: max(1, value.size // _LOOKED_AT)] if value.dtype.kind in "biufcSU" else ()
        return [str(value.dtype), *value.shape, xxhash.xxh3_64_hexdigest(np.array(some).tobytes())]
    if isinstance(value, (bytes, bytearray)):
        return xxhash.xxh3_64_hexdigest(bytes(value))
    return type(value).__name__


def as_text(value: Any) -> str:
    """Return a state as text that is the same wherever it means the same, its tensors as a digest."""
    tensors: list[torch.Tensor] = []
    return json.dumps([normal_form(value, tensors.append), digest_of(tensors)])


def _number(value: Any) -> str:
    """Return a number as text that is the same for 1, 1.0 and True; large integers stay exact."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, int) and abs(plain) >= _LARGEST_EXACT:
        return str(plain)
    return float(plain).hex() if isinstance(plain, (bool, int, float)) else str(plain)


def _end(tensor: torch.Tensor) -> int:
    """Return the number of the byte behind a tensor's last element, from the beginning of its memory."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    last = int(tensor.storage_offset()) + sum((size - 1) * stride for size, stride in strides)
    return (last + 1) * tensor.element_size()

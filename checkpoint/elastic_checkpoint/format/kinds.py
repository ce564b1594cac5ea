"""Of what kind is a value of a state? Needs no torch: where that is not loaded, there are no tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def is_sharded(value: object) -> bool:
    """Whether this is a DTensor. Does not import what defines them: without it there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_stateful(value: object) -> bool:
    """Whether `value` is saved as its state_dict()."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether these strides lay the elements out without gaps or overlaps, in some order of the axes."""
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda axis: (axis[1], axis[0])):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def has_fixed_meaning(dtype: np.dtype[Any]) -> bool:
    """Whether bytes of this NumPy dtype mean the same on every machine: no objects, records or long doubles."""
    return not dtype.hasobject and dtype.kind != "V" and dtype.char not in "gG"

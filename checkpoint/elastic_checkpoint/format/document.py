"""What a state and its document are, of what kind a value is, and how the path to an entry is written. Needs no torch.

tree.py makes one of the other, decoding.py goes back, marks.py says which entries differ from rank to rank.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


TAG = "!"
PER_RANK = "per_rank"  # the tag of an entry of which each rank's own value is kept
DEPTH_MAX = 200  # levels of nesting; far above any state, below Python's limit on recursion

Tree = Any  # dicts, lists, tuples, sets, tensors, arrays and plain values, nested
Document = Any  # what json.dumps takes


def child(path: str, key: object) -> str:
    """Return the path of an entry: `.key` for a string, `[3]` for a position or any other key."""
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{shown(key)}]"


def shown(value: object) -> str:
    """Return the value's repr, also where Python writes none, as of what holds an integer of over 4,300 digits."""
    try:
        return repr(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else f"<a {type(value).__name__} with an integer of many digits>"


def is_sharded(value: object) -> bool:
    """Return whether this is a DTensor. Does not import what defines them: without it there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_stateful(value: object) -> bool:
    """Return whether `value` is saved as its state_dict()."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether these strides lay the elements out without gaps or overlaps, in some order of the axes."""
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda axis: (axis[1], axis[0])):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def has_fixed_meaning(dtype: np.dtype[Any]) -> bool:
    """Return whether bytes of this NumPy dtype mean the same on every machine: no objects, records or long doubles."""
    return not dtype.hasobject and dtype.kind != "V" and dtype.char not in "gG"

"""What a state and its document are, and how the path to an entry of them is written: what all of this room share.

tree.py makes one of the other, decoding.py goes back, marks.py says which entries differ from rank to rank.
"""

from __future__ import annotations

from typing import Any

TAG = "!"
PER_RANK = "per_rank"  # the tag of an entry of which each rank's own value is kept
DEPTH_MAX = 200  # levels of nesting; far above any state, below Python's limit on recursion

Tree = Any  # dicts, lists, tuples, sets, tensors, arrays and plain values, nested
Document = Any  # what json.dumps takes


def child(path: str, key: object) -> str:
    """The path of an entry: `.key` for a string, `[3]` for a position or any other key."""
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{shown(key)}]"


def shown(value: object) -> str:
    """Its repr, also where Python writes none: of an integer of more than 4,300 digits, and of what holds one."""
    try:
        return repr(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else f"<a {type(value).__name__} with an integer of many digits>"

"""Does a data set hold the same here as there? A digest of what it holds in memory, without a read.

A split that is drawn without a seed, a listing in another order, a set of names made a list, `data[rank::world_size]`:
each worker has examples of its own then, under the same numbers. So has a resume, whose epochs begin with one split and
end with another.

Looked at are, in the data set and in what it holds (Subset and its indices, transforms), arrays, tensors, and lists of
numbers and of strings, as they are before anything is read: of each up to _ROWS rows, evenly spread, of these up to
_COLUMNS numbers. Of strings the last part after a slash, since each machine may have its files elsewhere. Not looked at
is what lies in files (memory maps too), single numbers and strings, dicts of more than _ITEMS, pandas' and Arrow's
tables, Hugging Face's data sets, and models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from elastic.data.dataset_changes import OF_TRAINING, holders

_ROWS = 1024
_COLUMNS = 64
_ITEMS = 64
_DEPTH = 2
_BESIDE = ("elastic", "datasets", "pyarrow")
_SCALARS = (bool, int, float, str, np.integer, np.floating)


def content(dataset: Any) -> str | None:
    """64 bits, in hexadecimal, that are equal where the data set holds the same; None: it holds nothing to look at."""
    hasher, found = xxhash.xxh3_64(), False
    for holder in holders((dataset,), beside=_BESIDE, closed=OF_TRAINING):
        for name, value in vars(holder).items():
            for said in _said(value, _DEPTH):
                hasher.update(f"{type(holder).__qualname__}.{name} ".encode())
                hasher.update(said)
                found = True
    return hasher.hexdigest() if found else None


def _said(value: Any, depth: int) -> Iterator[bytes]:
    """What tells it from another one; nothing, where it is nothing to look at."""
    if type(value) is torch.Tensor:
        if value.layout is torch.strided and not value.is_meta and value.dim():
            yield f"{value.dtype} {tuple(value.shape)} ".encode() + (_rows_of(value) if value.numel() else b"")
    elif type(value) is np.ndarray:
        if value.ndim and value.dtype.kind in "biufcSUO":
            kind, chosen = f"{value.dtype} {value.shape} ".encode(), value[_spread(len(value)).numpy()]
            if value.dtype.kind == "O":
                yield from (kind + one for one in _of_list(chosen.reshape(-1).tolist()))
            else:
                yield kind + (chosen.reshape(len(chosen), -1)[:, :: _every(chosen)].tobytes() if value.size else b"")
    elif isinstance(value, range):
        yield repr(value).encode()
    elif isinstance(value, (list, tuple)) and value:
        listed = [*_of_list(value)]
        yield from listed
        if not listed and depth and len(value) <= _ITEMS:
            for one in value:
                yield from _said(one, depth - 1)
    elif type(value) is dict and depth and len(value) <= _ITEMS:
        for key, one in value.items():
            for said in _said(one, depth - 1):
                yield f"{key} ".encode() + said


def _rows_of(tensor: torch.Tensor) -> bytes:
    rows = tensor.detach()[_spread(len(tensor)).to(tensor.device)]
    flat = rows.reshape(len(rows), -1)[:, :: _every(rows)].cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data)


def _of_list(values: Sequence[Any]) -> Iterator[bytes]:
    """Of numbers and strings, or of tuples and lists of them, such as a file's name and its class."""
    chosen = [values[number] for number in _spread(len(values)).tolist()]
    rows = [one[:_COLUMNS] if isinstance(one, (list, tuple)) else (one,) for one in chosen]
    if rows and all(isinstance(item, _SCALARS) for row in rows for item in row):
        yield f"{len(values)} {[[_word(item) for item in row] for row in rows]}".encode("utf-8", "surrogateescape")


def _word(item: Any) -> Any:
    return item.rpartition("/")[2] if isinstance(item, str) else item.item() if isinstance(item, np.generic) else item


def _spread(length: int) -> torch.Tensor:
    """Numbers of up to _ROWS of so many rows, the first and the last among them."""
    if length <= _ROWS:
        return torch.arange(length)
    return (torch.arange(_ROWS) * (length - 1)).div(_ROWS - 1, rounding_mode="floor")


def _every(rows: Any) -> int:
    width = int(np.prod(rows.shape[1:], dtype=np.int64)) if len(rows.shape) > 1 else 1
    return max(1, -(-width // _COLUMNS))

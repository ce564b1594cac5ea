"""Does a data set have the same examples under the same numbers here as there? A digest, without a read.

A split that is drawn without a seed, a listing in another order, a set of names made a list, `data[rank::world_size]`:
each worker has examples of its own then. So has a resume, whose epochs begin with one split and end with another.

Looked at are the data set, and those that Subset and ConcatDataset are made of: what each holds one of for every
example of its own, in a list, tuple, range or array of one dimension, of integers, of strings, or of tuples of these
(indices, names of files, classes), and the tensors of a TensorDataset. Of each up to _ROWS rows, evenly spread, and of
a row up to _COLUMNS numbers; of strings the last part after a slash, since each machine may have its files elsewhere.
Whatever else a data set holds may honestly be another here and there: caches, counts, arguments, handles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import TensorDataset

from elastic.data.dataset_changes import data_sets

_ROWS = 1024
_COLUMNS = 64
_SIGNATURE = re.compile("[?#]")
_SCALARS = (bool, int, str, np.integer)


def content(dataset: Any) -> dict[str, str]:
    """By kind and attribute (of several data sets of one kind, together) 64 bits, in hexadecimal, that are equal where
    they hold the same."""
    found: dict[str, xxhash.xxh3_64] = {}
    for one in data_sets((dataset,)):
        length = _length(one)
        for name, value in vars(one).items() if length else ():
            try:
                said = _tensors(one) if name == "tensors" and type(one) is TensorDataset else _rows(value, length)
            except Exception:  # what cannot be looked at is nothing: the data set's own kinds may raise anything
                continue
            if said:
                hasher = found.setdefault(f"{type(one).__qualname__}.{name}", xxhash.xxh3_64())
                hasher.update(f"{length} ".encode())
                hasher.update(said)
    return {name: hasher.hexdigest() for name, hasher in found.items()}


def _length(dataset: Any) -> int:
    """0 where it has none."""
    try:
        return len(dataset)
    except Exception:  # the script's own, which may raise anything
        return 0


def _rows(value: Any, length: int) -> bytes:
    """What tells it from another one; nothing, where it is not one for each example."""
    kind = type(value)
    if kind not in (torch.Tensor, np.ndarray, range, list, tuple):
        return b""
    if kind in (torch.Tensor, np.ndarray) and (value.ndim != 1 or not _is_integral(value)):
        return b""
    if len(value) != length:
        return b""
    if kind in (list, tuple):
        return b"".join(_of_list(value))
    if kind is range:
        return repr(value).encode()
    if kind is torch.Tensor:
        return _bytes_of(value)
    chosen = value[_spread(length).numpy()]
    if value.dtype.kind in "SU":
        return b"".join(_of_list(chosen.astype(str).tolist()))
    return f"{value.dtype} ".encode() + np.ascontiguousarray(chosen).tobytes()


def _is_integral(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuSU"
    held = value.layout is torch.strided and not value.is_meta
    return held and not (value.is_floating_point() or value.is_complex() or value.is_quantized)


def _tensors(dataset: TensorDataset) -> bytes:
    return b"".join(
        _bytes_of(one) for one in dataset.tensors if type(one) is torch.Tensor and one.layout is torch.strided
    )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    said = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if tensor.is_meta or tensor.is_quantized or not tensor.numel():
        return said
    rows = tensor.detach()[_spread(len(tensor)).to(tensor.device)]
    width = rows[0].numel()
    flat = rows.reshape(len(rows), -1)[:, :: max(1, -(-width // _COLUMNS))]
    some = flat.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return said + bytes(some.view(torch.uint8).numpy().data)


def _of_list(values: Sequence[Any]) -> Iterator[bytes]:
    """Of integers and strings, or of tuples and lists of them, such as a file's name and its class."""
    chosen = [values[number] for number in _spread(len(values)).tolist()]
    rows = [one[:_COLUMNS] if type(one) in (list, tuple) else (one,) for one in chosen]
    if all(isinstance(item, _SCALARS) for row in rows for item in row):
        yield repr([[_word(item) for item in row] for row in rows]).encode("utf-8", "surrogateescape")


def _word(item: Any) -> Any:
    if not isinstance(item, str):
        return hex(int(item))
    if "://" in item:
        item = _SIGNATURE.split(item, maxsplit=1)[0]  # of a signed URL, which is another one at every start
    return str.rpartition(item, "/")[2]


def _spread(length: int) -> torch.Tensor:
    """Numbers of up to _ROWS of so many rows, the first and the last among them."""
    if length <= _ROWS:
        return torch.arange(length)
    return (torch.arange(_ROWS) * (length - 1)).div(_ROWS - 1, rounding_mode="floor")

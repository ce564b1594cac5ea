"""What a checkpoint's tree consists of, from its document alone: no tensor is read.

A leaf is a tensor, an array or a plain value under the path that leads to it, the names that `digest` uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.decoding import decode, numpy_dtype
from elastic_checkpoint.format.document import DEPTH_MAX, PER_RANK, TAG, Document, child, shown
from elastic_checkpoint.format.dtypes import StoredDtype
from elastic_checkpoint.format.pieces import StoredTensor

_SHOWN = 60  # characters of a plain value
_PAIRS, _ITEMS = ("dict", "OrderedDict", "Counter"), ("tuple", "torch.Size", PER_RANK)

Dtype = StoredDtype | np.dtype[Any]


@dataclass(frozen=True)
class Array:
    """A tensor or array that has not been read. `name` is its name in the manifest."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def form(self) -> tuple[Dtype, tuple[int, ...]]:
        return self.dtype, self.shape

    def __str__(self) -> str:
        kind = self.dtype.name if isinstance(self.dtype, StoredDtype) else f"array {self.dtype}"
        return f"{kind} {list(self.shape)}"


@dataclass(frozen=True)
class Value:
    """A plain value, as the text of its document: equal texts are equal values, NaN and the types included."""

    text: str

    def __str__(self) -> str:
        try:
            text = shown(decode(json.loads(self.text), {}))
        except CorruptCheckpoint:
            text = self.text
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def entry(document: Document, tensors: dict[str, StoredTensor]) -> Array | Value:
    """Return the leaf that this is. Raises KeyError, TypeError, ValueError, AttributeError if no encoder wrote it."""
    kind = document.get(TAG) if type(document) is dict else None
    if kind == "tensor":
        stored = tensors[document["name"]]
        return Array(document["name"], stored.dtype, stored.shape)
    if kind == "ndarray":
        stored = tensors[document["name"]]
        dtype, shape = numpy_dtype(document["dtype"]), tuple(int(size) for size in document["shape"])
        if not dtype.itemsize or stored.dtype.name != "uint8":
            raise ValueError(f"no array has dtype {dtype}")
        if math.prod(stored.shape) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{math.prod(stored.shape)} stored bytes are no array {dtype} {shape}")
        return Array(document["name"], dtype, shape)
    return Value(_text(document))


def is_mapping(document: Document) -> bool:
    """Return whether its children are under keys rather than positions."""
    return type(document) is dict and (TAG not in document or document[TAG] in _PAIRS)


def leaves(document: Document, path: str = "", depth: int = 0) -> Iterator[tuple[str, Document]]:
    """Yield everything that holds nothing, empty containers too, under its path. Raises what `entry` does."""
    if depth > 2 * DEPTH_MAX:
        raise ValueError(f"it is nested more than {2 * DEPTH_MAX} levels deep")
    held = children(document)
    if not held:
        yield path, document
    for key, item in held:
        yield from leaves(item, child(path, key), depth + 1)


def children(document: Document) -> list[tuple[Any, Document]]:
    """Return the entries of a container; none for a leaf, which an empty container is too."""
    if type(document) is list:
        return list(enumerate(document))
    if type(document) is not dict:
        return []
    if TAG not in document:
        return list(document.items())
    if document[TAG] in _PAIRS:
        return [(decode(key, {}), item) for key, item in document["items"]]
    return list(enumerate(document["items"])) if document[TAG] in _ITEMS else []


def _text(document: Document) -> str:
    """Return one text for one value, whatever the order of keys; empty containers are alike too."""
    if type(document) is dict and document.get(TAG) in (*_PAIRS, *_ITEMS):
        document = {} if document[TAG] in _PAIRS else []
    return json.dumps(document, sort_keys=True)

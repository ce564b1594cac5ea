"""The way back from `tree.encode`. Trusts nothing: what no encoder wrote is `CorruptCheckpoint`, and no code runs."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.document import (
    DEPTH_MAX,
    PER_RANK,
    TAG,
    Document,
    Tree,
    has_fixed_meaning,
    is_dense,
    is_sharded,
)
from elastic_checkpoint.format.dtypes import name_of
from elastic_checkpoint.format.marks import PerRank

if TYPE_CHECKING:
    import torch

# By chance it is few: -1 and -2 are alike, and 34 of the powers of two that are floats.
_ALIKE_MAX = 100  # members of one hash in one set or dict
_ALIKE_FROZENSETS_MAX = 1000  # of all members that are frozensets, or hold some

_NUMPY_DTYPE = re.compile(r"[<>|=]?[A-Za-z]\d*(\[\w+\])?")  # as dtype.str gives it


def decode(document: Document, tensors: dict[str, torch.Tensor], *, arrays: dict[int, str] | None = None) -> Tree:
    """Return the tree that `encode` was given.

    Args:
        document: As `encode` gave it.
        tensors: By the names in the document. Contiguous ones are not copied; CPU is not required. Those without data
            (of the meta device) give a tree of the same form, whose tensors and arrays have none.
        arrays: Gets the id of each array in the tree, and the name of the tensor that it is made of.

    Raises:
        CorruptCheckpoint: This is nothing that `encode` can have written.
    """
    arrays = {} if arrays is None else arrays
    try:
        return _Decoder(tensors, arrays).value(document, 0)
    except RecursionError:  # of a document that is nested deeply, or of a caller that is
        pass
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-decode") as fresh:
        try:
            return fresh.submit(_Decoder(tensors, arrays).value, document, 0).result()
        except RecursionError as error:
            raise CorruptCheckpoint("the document is nested more deeply than any that was saved") from error


class _Decoder:
    def __init__(self, tensors: dict[str, torch.Tensor], arrays: dict[int, str]) -> None:
        self._tensors = tensors
        self._arrays = arrays
        self._laid_out: dict[str, tuple[tuple[int, ...], torch.Tensor]] = {}  # tied tensors stay one tensor
        self._frozensets = self._alike = 0

    def value(self, document: Document, depth: int) -> Any:
        if depth > 2 * DEPTH_MAX:
            raise CorruptCheckpoint(f"the document is nested more than {2 * DEPTH_MAX} levels deep")
        if document is None or type(document) in (bool, int, float, str):
            return document
        if type(document) is list:
            return [self.value(item, depth + 1) for item in document]
        if type(document) is not dict:
            raise CorruptCheckpoint(f"a {type(document).__name__} is no JSON value")
        if TAG not in document:
            return {key: self.value(item, depth + 1) for key, item in document.items()}
        try:
            return self._tagged(document[TAG], document, depth)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError, struct.error) as error:
            if isinstance(error, RecursionError):
                raise
            kind = str(document[TAG])[:40]
            raise CorruptCheckpoint(
                f"a value marked {kind!r} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _tagged(self, kind: object, document: dict[str, Any], depth: int) -> Any:
        match kind:
            case "int":
                return int(document["hex"], 16)
            case "float":
                return struct.unpack(">d", bytes.fromhex(document["bits"]))[0]
            case "complex":
                return complex(*struct.unpack(">dd", bytes.fromhex(document["bits"])))
            case "str":
                return bytes.fromhex(document["hex"]).decode("utf-8", "surrogatepass")
            case "bytes":
                return base64.b64decode(document["base64"], validate=True)
            case "bytearray":
                return bytearray(base64.b64decode(document["base64"], validate=True))
            case "tuple":
                return tuple(self.value(document["items"], depth + 1))
            case "set":
                return set(self._hashed(document["items"], depth))
            case "frozenset":
                self._frozensets += 1
                return frozenset(self._hashed(document["items"], depth))
            case "dict":
                return dict(self._pairs(document, depth))
            case "Counter":
                counter: Counter[Any] = Counter()
                counter.update(dict(self._pairs(document, depth)))
                return counter
            case "OrderedDict":
                ordered = OrderedDict(self._pairs(document, depth))
                if "metadata" in document:
                    ordered._metadata = self.value(document["metadata"], depth + 1)  # type: ignore[attr-defined]
                return ordered
            case "torch.Size" | "torch.dtype" | "torch.device":
                return _of_torch(kind, document)
            case "tensor":
                return self._tensor(document)
            case _ if kind == PER_RANK:
                return PerRank(self.value(item, depth + 1) for item in document["items"])
            case "ndarray":
                array = self._array(document)
                self._arrays[id(array)] = document["name"]
                return array
            case "scalar":
                return _scalar(document)
            case _:
                raise CorruptCheckpoint(f"a value is marked {str(kind)[:40]!r}, which this version does not know")

    def _pairs(self, document: dict[str, Any], depth: int) -> list[tuple[Any, Any]]:
        keys = self._hashed([key for key, _ in document["items"]], depth)
        pairs = [(key, self.value(item, depth + 1)) for key, (_, item) in zip(keys, document["items"], strict=True)]
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key occurs twice")
        return pairs

    def _hashed(self, items: list[Document], depth: int) -> list[Any]:
        """Return what is to be members of a set or keys of a dict. Raises ValueError where too many share a hash."""
        before = self._frozensets
        members = [self.value(item, depth + 1) for item in items]
        by_hash = Counter(map(hash, members))
        if self._frozensets > before:  # comparing two of them compares what they hold, each with each
            self._alike += len(members) - len(by_hash)
        # Making it would take time in the square of their number, in C, where no Ctrl-C is heard.
        if max(by_hash.values(), default=0) > _ALIKE_MAX or self._alike > _ALIKE_FROZENSETS_MAX:
            raise ValueError(f"of {len(members):,} members or keys too many have the same hash")
        return members

    def _stored(self, name: object) -> torch.Tensor:
        if type(name) is not str or name not in self._tensors:
            raise CorruptCheckpoint(f"the document names tensor {str(name)[:80]!r}, which is not in the table")
        return self._tensors[name]

    def _tensor(self, document: dict[str, Any]) -> torch.Tensor:
        stored = self._stored(document["name"])
        if "stride" not in document or is_sharded(stored):
            return stored
        stride = _sizes(document["stride"])
        if len(stride) != stored.dim() or not is_dense(tuple(stored.shape), stride):
            raise ValueError(f"strides {stride} do not fit shape {tuple(stored.shape)}")
        name = document["name"]
        if name not in self._laid_out:
            empty = stored.new_empty_strided(stored.shape, stride)
            self._laid_out[name] = stride, empty.copy_(stored)
        known, laid_out = self._laid_out[name]
        if known != stride:  # each would be a copy of its own, and a manifest may name any number
            raise ValueError(f"tensor {name!r} has strides {known} and {stride}; what is laid out otherwise is another")
        return laid_out

    def _array(self, document: dict[str, Any]) -> np.ndarray[Any, Any]:
        dtype, shape = numpy_dtype(document["dtype"]), _sizes(document["shape"])
        stored = self._stored(document["name"])
        if not dtype.itemsize:
            raise ValueError("an array of elements without bytes")
        if name_of(stored.dtype) != "uint8" or stored.dim() != 1 or stored.numel() != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{stored.numel()} stored bytes are no array {dtype} {shape}")
        if stored.is_meta:
            return np.broadcast_to(np.zeros((), dtype), shape)
        return stored.cpu().numpy().view(dtype).reshape(shape)


def _sizes(value: object) -> tuple[int, ...]:
    if type(value) is not list or len(value) > 64 or any(type(n) is not int or not 0 <= n < 2**62 for n in value):
        raise ValueError(f"{str(value)[:80]} is no list of sizes")
    return tuple(value)


def _of_torch(kind: str, document: dict[str, Any]) -> Any:
    import torch  # only here: few documents hold any of these, and `elastic checkpoint ls` takes a fraction of its time

    match kind:
        case "torch.Size":
            return torch.Size(_sizes(document["items"]))
        case "torch.device":
            return torch.device(document["name"])
    name = document["name"]  # of any dtype, also those whose tensors we do not store: a configuration may name them
    found = getattr(torch, name, None) if type(name) is str else None
    if isinstance(found, torch.dtype):
        return found
    raise ValueError(f"torch has no dtype {str(name)[:40]!r}")


def numpy_dtype(text: object) -> np.dtype[Any]:
    """Raise ValueError for what is no dtype that is saved; NumPy would take much else, and evaluates some of it."""
    if type(text) is not str or len(text) > 40 or not _NUMPY_DTYPE.fullmatch(text):
        raise ValueError("no dtype")
    try:
        dtype = np.dtype(text)
    except TypeError as error:
        raise ValueError(f"{text!r} is no dtype") from error
    if not has_fixed_meaning(dtype):
        raise ValueError(f"dtype {text!r} is not one that is saved")
    return dtype


def _scalar(document: dict[str, Any]) -> np.generic:
    dtype, data = numpy_dtype(document["dtype"]), bytes.fromhex(document["hex"])
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are no {dtype}")
    scalar = np.frombuffer(data, dtype)[0] if dtype.itemsize else dtype.type()
    assert isinstance(scalar, np.generic)
    return scalar

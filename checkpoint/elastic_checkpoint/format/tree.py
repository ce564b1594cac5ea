"""A state as JSON and named tensors, and back, exactly. Nothing is pickled.

`encode` walks dicts, lists and tuples; an object with state_dict() and load_state_dict() stands for its state_dict().
Each tensor is taken out under the name of the path that leads to it (`model.fc.weight`, `optimizer.state[0].exp_avg`),
so that names do not depend on how a state is sharded or which containers hold it. Tensors that are the same memory
(tied weights) are kept once and decode to one tensor.

In the document, JSON's own null, booleans, strings, finite floats (their shortest form reads back to the same bits),
integers below 2**63, arrays (lists) and objects (dicts with string keys) mean themselves. Everything else is an object
whose key "!" names its kind. Kept: value, type, order, shape, dtype, dense memory layout (channels_last). Not kept:
device, requires_grad, and that two plain containers were one object.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from elastic_checkpoint.errors import UnsupportedValue
from elastic_checkpoint.format.document import (
    DEPTH_MAX,
    PER_RANK,
    TAG,
    Document,
    Tree,
    child,
    has_fixed_meaning,
    is_dense,
    is_sharded,
    is_stateful,
)
from elastic_checkpoint.format.dtypes import name_of
from elastic_checkpoint.format.marks import Marks
from elastic_checkpoint.format.tensors import NAMES

_KEY = " (the key)"
_OWN_NAME = re.compile(r"#rank\d+(#\d+)?$")  # of tensors of one rank alone


def encode(
    tree: Tree, *, sharded: bool = False, marks: Marks | None = None
) -> tuple[Document, dict[str, torch.Tensor]]:
    """Return the JSON document of `tree` and its tensors by name, in the order in which they are met.

    The tensors are detached but not copied: they share memory with the state. Arrays become tensors too.

    sharded  DTensors stand for the whole tensors that they are shards of; else they are refused
    marks    says which entries may differ between ranks, and notes what is met of them: the document has a node without
             values where each rank's own is kept (marks.py)
    Raises `UnsupportedValue` naming the path and the way out.
    """
    encoder = _Encoder(sharded, marks)
    return encoder.value(tree, "", 0), encoder.tensors


def walk_tensors(tree: Tree, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor and array of `tree` under its path, tied ones under each of their names."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, np.ndarray):
        yield path, _array_tensor(tree)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk_tensors(value, child(path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from walk_tensors(value, child(path, index))
    elif is_stateful(tree):
        yield from walk_tensors(tree.state_dict(), path)


class _Encoder:
    def __init__(self, sharded: bool, marks: Marks | None) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._sharded = sharded
        self._marks = marks
        self._suffix = ""  # of the names of one rank's own tensors
        self._names: dict[object, str] = {}  # memory -> the name it is kept under, and so kept from being reused

    def value(self, value: Any, path: str, depth: int) -> Document:
        kind = type(value)
        if depth > DEPTH_MAX:
            raise _unsupported(path, value, f"is nested more than {DEPTH_MAX} levels deep, or holds itself")
        if self._marks is not None and self._marks.per_rank_paths.match(path) and not path.endswith(_KEY):
            return self._of_this_rank(value, path, depth, self._marks)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {TAG: "int", "hex": format(value, "x")}
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "bits": struct.pack(">d", value).hex()}
        if kind is str:
            return _string(value)
        if kind is list:
            return self._items(value, path, depth)
        if kind is dict:
            if all(type(key) is str and key != TAG and _is_text(key) for key in value):
                return {key: self.value(item, child(path, key), depth + 1) for key, item in value.items()}
            return {TAG: "dict", "items": self._pairs(value, path, depth)}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        return self._tagged(value, path, depth)

    def _tagged(self, value: Any, path: str, depth: int) -> Document:
        """Return the document of one of the rarer kinds; a subclass is refused, as its extra state would be lost."""
        kind = type(value)
        if kind is tuple:
            return {TAG: "tuple", "items": self._items(value, path, depth)}
        if kind is OrderedDict:
            document = {TAG: "OrderedDict", "items": self._pairs(value, path, depth)}
            if hasattr(value, "_metadata"):  # a module's state_dict carries its layers' versions there
                document["metadata"] = self.value(value._metadata, child(path, "_metadata"), depth + 1)
            return document
        if kind is Counter:
            return {TAG: "Counter", "items": self._pairs(value, path, depth)}
        if kind is set or kind is frozenset:
            items = [self.value(item, child(path, item), depth + 1) for item in value]
            return {TAG: kind.__name__, "items": sorted(items, key=repr)}
        if kind is bytes or kind is bytearray:
            return {TAG: kind.__name__, "base64": base64.b64encode(value).decode("ascii")}
        if kind is complex:
            return {TAG: "complex", "bits": struct.pack(">dd", value.real, value.imag).hex()}
        if kind is torch.Size:
            return {TAG: "torch.Size", "items": list(value)}
        if kind is torch.dtype:
            return {TAG: "torch.dtype", "name": name_of(value)}
        if kind is torch.device:
            return {TAG: "torch.device", "name": str(value)}
        if isinstance(value, np.generic):
            return self._scalar(value, path)
        if kind is np.ndarray:
            return self._array(value, path)
        if is_stateful(value):
            if self._marks is not None and isinstance(value, torch.nn.Module):
                self._marks.buffer_paths.update(child(path, name) for name, _ in _buffers(value))
            return self.value(value.state_dict(), path, depth + 1)
        raise _unsupported(path, value, _advice(value))

    def _of_this_rank(self, value: Any, path: str, depth: int, marks: Marks) -> Document:
        """Return a node without values, which come from all ranks; this one's is noted."""
        if path in marks.own:  # {"a.b": ...} beside {"a": {"b": ...}}
            raise _unsupported(path, value, "is the path of two entries, and per_rank= names it; rename one of them")
        apart = _Encoder(False, None)  # what it has in common with the rest is not of this rank alone
        apart._suffix = f"#rank{marks.rank}"
        marks.own[path] = apart.value(value, path, depth + 1)
        marks.own_tensors.update(apart.tensors)
        self.tensors.update(apart.tensors)
        marks.nodes[path] = {TAG: PER_RANK, "items": []}
        return marks.nodes[path]

    def _items(self, values: Any, path: str, depth: int) -> list[Document]:
        return [self.value(item, child(path, index), depth + 1) for index, item in enumerate(values)]

    def _pairs(self, values: dict[Any, Any], path: str, depth: int) -> list[Document]:
        return [
            [self.value(key, child(path, key) + _KEY, depth + 1), self.value(item, child(path, key), depth + 1)]
            for key, item in values.items()
        ]

    def _tensor(self, tensor: torch.Tensor, path: str) -> Document:
        if is_lazy(tensor):
            raise _unsupported(
                path, tensor, "is uninitialized and has no values yet; run a forward pass first, which gives it some"
            )
        shard = self._sharded and is_sharded(tensor)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not shard:
            raise _unsupported(
                path, tensor, "is a tensor subclass; save its plain parts (`.to_local()`, `.full_tensor()`)"
            )
        if (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.device.type == "meta"
        ):
            raise _unsupported(
                path, tensor, "is not a dense tensor with data; convert it with `.to_dense()` or the like"
            )
        if tensor.dtype not in NAMES:
            raise _unsupported(path, tensor, f"has dtype {tensor.dtype}; view it as one of {', '.join(NAMES.values())}")
        if shard and any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
            raise _unsupported(path, tensor, "is a DTensor of partial sums; reduce it first (`.redistribute()`)")
        plain = tensor if shard else tensor.detach()  # detaching a DTensor costs as much as all the rest here
        document: dict[str, Any] = {TAG: "tensor", "name": self._keep(plain, path)}
        if not shard and not plain.is_contiguous() and is_dense(tuple(plain.shape), plain.stride()):
            document["stride"] = list(plain.stride())
        return document

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Document:
        if not has_fixed_meaning(array.dtype) or not array.dtype.itemsize:
            raise _unsupported(path, array, f"has dtype {array.dtype}; use one of fixed meaning on every machine")
        name = self._keep(_array_tensor(array), path)
        return {TAG: "ndarray", "name": name, "dtype": array.dtype.str, "shape": list(array.shape)}

    def _scalar(self, scalar: np.generic, path: str) -> Document:
        if not has_fixed_meaning(scalar.dtype):
            raise _unsupported(path, scalar, "has no fixed meaning on every machine; convert it to a Python number")
        return {TAG: "scalar", "dtype": scalar.dtype.str, "hex": scalar.tobytes().hex()}

    def _keep(self, tensor: torch.Tensor, path: str) -> str:
        memory = _memory(tensor)
        if memory in self._names:
            return self._names[memory]
        base = (path.encode("utf-8", "replace").decode("utf-8") or "value") + self._suffix
        if self._marks is not None and _OWN_NAME.search(base):
            base += "#"  # else some rank's own tensor could have this very name
        name, count = base, 1
        while name in self.tensors:  # {"a.b": {"c": …}} beside {"a": {"b.c": …}}
            count += 1
            name = f"{base}#{count}"
        self._names[memory] = name
        self.tensors[name] = tensor
        if self._marks is not None:
            self._marks.note_tensor(name, path)
        return name


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return module.named_buffers(remove_duplicate=False)


def _memory(tensor: torch.Tensor) -> object:
    """Return what two tensors have in common only if they are tied; also of a shard whose part here is empty."""
    if is_sharded(tensor):
        spec = tensor.placements, tensor.device_mesh  # type: ignore[attr-defined]
        with torch.no_grad():  # else it makes a node of autograd's graph
            local = tensor.to_local()  # type: ignore[attr-defined]
        return local.untyped_storage()._cdata, local.storage_offset(), local.stride(), tensor.dtype, tensor.shape, spec
    if not tensor.numel():
        return object()  # empty tensors all have address 0 and are not tied
    view = tensor.is_conj(), tensor.is_neg()
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), view


def _array_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the array's bytes, in row-major order, as a flat uint8 tensor; its document says what they are."""
    return torch.from_numpy(np.frombuffer(bytearray(array.tobytes(order="C")), dtype=np.uint8))


def _is_text(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _string(text: str) -> Document:
    """Return the text's document: bytes, where JSON would join two lone surrogates into one letter on the way back."""
    return text if _is_text(text) else {TAG: "str", "hex": text.encode("utf-8", "surrogatepass").hex()}


def _advice(value: object) -> str:
    if isinstance(value, torch.Generator):
        return "is a generator; save its .get_state(), and .set_state() it after loading"
    if isinstance(value, np.random.Generator):
        return "is a generator; save its .bit_generator.state, and set that after loading"
    if isinstance(value, Enum):
        return "is an enum member; save its .value"
    if isinstance(value, defaultdict):
        return "is a defaultdict, whose factory is code; save dict(...) and make the factory anew"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "is a named tuple; save its ._asdict()"
    if isinstance(value, dict | list | tuple | set | str | int | float | bytes):
        return "is a subclass whose extra state would be lost; save the plain value"
    if callable(value):
        return "is code; make it anew when the run starts, or give its owner state_dict() and load_state_dict()"
    return "cannot be saved without pickle; save plain values, or give it state_dict() and load_state_dict()"


def _unsupported(path: str, value: object, why: str) -> UnsupportedValue:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return UnsupportedValue(
        f"{path or 'the state'} {why}\n  type   {kind}\n  state  nothing was saved", path=path, type=kind
    )

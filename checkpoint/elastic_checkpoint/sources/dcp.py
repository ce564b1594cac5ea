"""Folders of torch.distributed.checkpoint (DCP): its metadata is a pickle, and every value in its files is one.

The metadata is read by an unpickler that knows ten names of torch's and makes an inert record of ours for each: no
code of torch, and none that the bytes name, is run. Any other name ends the import. Values are read by torch's
weights_only reader, one at a time, when they are wanted.

DCP writes a state as one flat table. Where its planner left the paths, the nested state comes back, but for tuples of
tensors, which are lists, and for empty dicts, which it does not write. An optimizer's parameter numbers, which it
writes as text, are numbers again.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.dtypes import STORED, name_of
from elastic_checkpoint.format.pieces import columns
from elastic_checkpoint.format.tensors import DTYPES
from elastic_checkpoint.sources.source import BadSource, Source, bad, some
from elastic_checkpoint.sources.torch_file import load_part

METADATA = ".metadata"

_NUMBER_MAX = 2**62
_DCP = "torch.distributed.checkpoint"
_RECORDS = {
    (f"{_DCP}.metadata", name)
    for name in (
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
        *("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    )
} | {(f"{_DCP}.filesystem", "_StorageInfo"), ("torch.serialization", "_get_layout")}
_PATHS = {(module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")}

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class _Part:
    """A value in a file, or a box of a tensor."""

    file: str
    start: int
    bytes: int
    offsets: Numbers = ()
    sizes: Numbers = ()


@dataclass(frozen=True)
class _Stored:
    """A tensor."""

    name: str
    dtype: torch.dtype
    shape: Numbers
    parts: tuple[_Part, ...]


def read_dcp(folder: Path) -> Source:
    """Return the state that was saved. Raises `BadSource`."""
    folder = folder if folder.is_dir() else folder.parent
    try:
        return _Reader(folder).source()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise bad(
            folder / METADATA, f"is none of DCP's: {type(error).__name__}: {error}", "see what wrote it"
        ) from error
    except OSError as error:
        raise bad(folder, f"cannot be read: {error}", "see whether all of it is there") from error


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._standing: dict[int, _Stored] = {}  # address of the tensor that stands for it

    def source(self) -> Source:
        metadata = _unpickled(self._folder / METADATA)
        table = _field(metadata, "Metadata", "state_dict_metadata")
        planned = metadata.state.get("planner_data") or {}
        paths = planned if type(planned) is dict else {}
        where = {
            (_field(index, "MetadataIndex", "fqn"), index.state.get("offset")): info
            for index, info in _field(metadata, "Metadata", "storage_data").items()
        }
        values: dict[tuple[str | int, ...], Any] = {}
        for name, kind in table.items():
            path = paths.get(name, (name,))
            _expect(type(path) is tuple and bool(path) and all(type(key) in (str, int) for key in path), f"path {path}")
            values[path] = (
                self._value(name, where) if kind.kind == "BytesStorageMetadata" else self._tensor(name, kind, where)
            )
        return Source("dcp", _optimizers_again(_nested(values)), self._fetch)

    def _value(self, name: str, where: dict[Any, Any]) -> Any:
        return load_part(io.BytesIO(self._read(_part(where[name, None]))), self._folder, f"the value {name}")

    def _tensor(self, name: str, kind: Any, where: dict[Any, Any]) -> torch.Tensor:
        dtype = DTYPES[_field(kind, "TensorStorageMetadata", "properties").state[0]]
        shape = _numbers(kind.state["size"])
        parts = []
        for chunk in kind.state["chunks"]:
            offsets = _numbers(_field(chunk, "ChunkStorageMetadata", "offsets"))
            sizes = _numbers(chunk.state["sizes"])
            part = _part(where[name, offsets], offsets, sizes)
            inside = len(offsets) == len(sizes) == len(shape) and all(
                offset + size <= whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)
            )
            _expect(inside, f"a part {offsets} + {sizes} of {name}, which is {shape}")
            _expect(math.prod(sizes) * dtype.itemsize <= part.bytes, f"{part.bytes} bytes hold no {sizes} of {name}")
            parts.append(part)
        held = sum(math.prod(part.sizes) for part in parts)
        _expect(held == math.prod(shape), f"the parts of {name} hold {held} of {math.prod(shape)} elements")
        if len(parts) > 1:
            _expect_tiles(name, dtype, shape, [part for part in parts if 0 not in part.sizes])
        standing = torch.empty_strided(shape, (0,) * len(shape), dtype=dtype)  # one element
        self._standing[standing.data_ptr()] = _Stored(name, dtype, shape, tuple(parts))
        return standing

    def _fetch(self, standing: torch.Tensor) -> torch.Tensor:
        stored = self._standing[standing.data_ptr()]
        whole: torch.Tensor | None = None
        for part in stored.parts:
            what = f"a part of {stored.name}"
            found = load_part(io.BytesIO(self._read(part)), self._folder, what)
            fits = isinstance(found, torch.Tensor) and (found.dtype, tuple(found.shape)) == (stored.dtype, part.sizes)
            if not fits:
                raise bad(self._folder / part.file, f"{what} is no {stored.dtype} {part.sizes}", "see what wrote it")
            if len(stored.parts) == 1:
                return found  # type: ignore[no-any-return]
            if whole is None:
                whole = torch.empty(stored.shape, dtype=stored.dtype)
            box = whole
            for axis, (offset, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
                box = box.narrow(axis, offset, size)
            box.copy_(found)
        assert whole is not None, "a tensor without elements lies in no shard"
        return whole

    def _read(self, part: _Part) -> bytes:
        path = self._folder / part.file
        try:
            with open(path, "rb") as file:
                file.seek(part.start)
                data = file.read(part.bytes)
        except OSError as error:
            raise bad(path, f"cannot be read: {error}", "see whether all of the folder is there") from error
        if len(data) != part.bytes:
            raise bad(path, f"ends {part.bytes - len(data)} bytes early", "fetch it again")
        return data


class _Record:
    """Stands for an object of torch's: what it was made of, and nothing that runs."""

    kind = ""
    state: Any = None

    def __new__(cls, *arguments: Any) -> _Record:
        made = super().__new__(cls)
        made.state = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def inert_kinds() -> dict[tuple[str, str], type[_Record]]:
    """Return new classes for each reading, which bytes that change a class cannot spoil for the next one."""
    return {key: type(key[1], (_Record,), {"kind": key[1]}) for key in _RECORDS | _PATHS}


class _Unpickler(pickle.Unpickler):  # every name that the bytes hold passes here
    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file)
        self.refused: list[str] = []
        self._kinds = inert_kinds()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._kinds:
            return self._kinds[module, name]
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and name in DTYPES:
            return name
        self.refused.append(f"{module}.{name}")
        raise pickle.UnpicklingError(f"{module}.{name}")


def _unpickled(path: Path) -> Any:
    with open(path, "rb") as file:
        unpickler = _Unpickler(file)
        try:
            return unpickler.load()
        except OSError:
            raise
        except Exception as error:  # bytes that nobody pickled raise anything
            if unpickler.refused:
                raise bad(
                    path,
                    f"names more than DCP's own tables: {some(unpickler.refused)}",
                    "save it again where it is trusted, with torch.distributed.checkpoint's own planner",
                ) from error
            raise bad(path, f"is no pickle: {type(error).__name__}: {error}", "see what wrote it") from error


def _field(record: Any, kind: str, name: str) -> Any:
    _expect(isinstance(record, _Record) and record.kind == kind, f"a {type(record).__name__} where a {kind} belongs")
    return record.state[name]


def _part(info: Any, offsets: Numbers = (), sizes: Numbers = ()) -> _Part:
    file = _field(info, "_StorageInfo", "relative_path")
    _expect(type(file) is str and Path(file).name == file and file not in (".", ".."), f"a file {file!r}")
    transforms = info.state.get("transform_descriptors")
    _expect(not transforms, f"values that went through {transforms}, which are not undone here")
    start, length = _numbers((info.state["offset"], info.state["length"]))
    return _Part(file, start, length, offsets, sizes)


def _numbers(values: Any) -> Numbers:
    good = isinstance(values, tuple | list) and all(type(one) is int and 0 <= one < _NUMBER_MAX for one in values)
    _expect(good and len(values) <= 64, f"{str(values)[:60]} where sizes belong")
    return tuple(values)


def _expect_tiles(name: str, dtype: torch.dtype, shape: Numbers, parts: Sequence[_Part]) -> None:
    """Raise ValueError unless the parts tile the tensor: else some of it would be whatever was in that memory."""
    pieces = [
        {"object": number, "start": 0, "offsets": list(part.offsets), "sizes": list(part.sizes)}
        for number, part in enumerate(parts)
    ]
    try:
        columns([(name, STORED[name_of(dtype)], shape, pieces)]).judge([_NUMBER_MAX] * len(parts))
    except CorruptCheckpoint as error:
        raise ValueError(str(error)) from error


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _nested(values: dict[tuple[str | int, ...], Any]) -> Any:
    """Return containers again: a dict where keys are text, a list where they are positions."""
    root: dict[str | int, Any] = {}
    containers = {id(root)}
    for path, value in values.items():
        here = root
        for key in path[:-1]:
            if key not in here:
                here[key] = {}
                containers.add(id(here[key]))
            here = here[key]
            _expect(id(here) in containers, f"{path} leads through a value")
        _expect(path[-1] not in here, f"{path} is there twice")
        here[path[-1]] = value

    def listed(held: Any) -> Any:
        if id(held) not in containers:
            return held
        positions = [key for key in held if type(key) is int]
        if not positions:
            return {key: listed(item) for key, item in held.items()}
        _expect(sorted(positions) == list(range(len(held))), f"positions {some(sorted(map(str, held)))} of a list")
        return [listed(held[position]) for position in range(len(held))]

    return listed(root)


def _optimizers_again(tree: Any) -> Any:
    """Return the tree with optimizers' parameter numbers as numbers, and a state where there was none to write."""
    if isinstance(tree, list):
        return [_optimizers_again(item) for item in tree]
    if type(tree) is not dict:
        return tree
    tree = {key: _optimizers_again(item) for key, item in tree.items()}
    groups, state = tree.get("param_groups"), tree.get("state", {})
    if _are_groups(groups) and type(state) is dict:
        numbers = {str(number): number for group in groups for number in group["params"] if type(number) is int}
        tree["state"] = {numbers.get(key, key): value for key, value in state.items()}
    return tree


def _are_groups(groups: Any) -> bool:
    if not (isinstance(groups, list) and groups):
        return False
    return all(type(group) is dict and isinstance(group.get("params"), Sequence) for group in groups)


__all__ = ["METADATA", "BadSource", "read_dcp"]

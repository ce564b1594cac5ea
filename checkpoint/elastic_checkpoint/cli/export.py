"""A checkpoint for other tools: one folder of safetensors as on the Hugging Face hub, or of torch's own DCP format.

safetensors  model.safetensors; beyond `max_shard_bytes` model-00001-of-00003.safetensors and so on, and
             model.safetensors.index.json. Tensors only, under the names of the part's state_dict(); with several parts
             the part's name comes first. Of tied tensors the one that is met first is written, which is what
             transformers keeps of an embedding and its head; the file's metadata (the index's, if there are several
             files) maps the other names to it, and `safetensors.torch.load_model` ties them again.
dcp          what torch.distributed.checkpoint.load reads, tensors and plain values, below the parts' names:
             `dcp.load({"model": model.state_dict()}, checkpoint_id=folder)`. The format holds pickles.

Tensors are read one at a time (stream.py), so memory is needed for one object or one tensor of the checkpoint.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from elastic_checkpoint.cli.new_folder import ExportFailed
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.decoding import decode
from elastic_checkpoint.format.document import TAG, Document
from elastic_checkpoint.format.dtypes import StoredDtype
from elastic_checkpoint.format.leaves import Array, children, is_mapping
from elastic_checkpoint.format.tensors import torch_dtype
from elastic_checkpoint.load.stream import Bytes, Stream

MAX_SHARD_BYTES = 5 * 10**9

_WEIGHTS = "model"

Form = tuple[str, list[int]]  # safetensors' name of a dtype, and its shape


@dataclass(frozen=True)
class Exported:
    """What a folder holds.

    files     name -> size in bytes
    tensors   how many were written
    bytes     of their elements
    tied      name that was not written -> name that holds its values
    left_out  paths of what the format cannot hold
    """

    files: dict[str, int]
    tensors: int
    bytes: int
    tied: dict[str, str]
    left_out: tuple[str, ...]


def select(stream: Stream, parts: Sequence[str], where: str) -> dict[str, Document]:
    """Return these top-level parts of a checkpoint's tree. Raises `ExportFailed` that lists those there are.

    where  names the checkpoint in the error
    """
    there = {str(key): part for key, part in children(stream.tree)} if is_mapping(stream.tree) else {}
    missing = [part for part in parts if part not in there]
    if missing:
        named = ", ".join(f"{name} ({_inside(stream, part)})" for name, part in there.items())
        raise ExportFailed(
            f"{where} has no part {', '.join(missing)}\n"
            f"  found  {named or 'one value, which has no parts'}\n"
            "  state  nothing was written\n  next   choose with --part NAME, which may be given several times"
        )
    return {part: there[part] for part in dict.fromkeys(parts)}


def write_safetensors(
    stream: Stream, parts: dict[str, Document], folder: Path, *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> Exported:
    """Write the parts' tensors into `folder` in Hugging Face's layout.

    Raises ExportFailed, OSError, and what reading them raises.
    """
    tensors, left_out = _named_tensors(stream, parts)
    kept, tied = _untie(tensors)
    forms = _forms(kept)
    shards = split({name: _bytes(leaf) for name, leaf in kept.items()}, max_shard_bytes)
    files = _file_names(len(shards))
    header = {"format": "pt"} | (tied if len(shards) == 1 else {})
    for file, names in zip(files, shards, strict=True):
        _write_file(stream, folder / file, {name: kept[name] for name in names}, forms, header)
    total = sum(_bytes(leaf) for leaf in kept.values())
    if len(shards) > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total, **tied}, "weight_map": weight_map}
        (folder / f"{_WEIGHTS}.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return Exported(_sizes(folder), len(kept), total, tied, tuple(left_out))


def _write_file(
    stream: Stream, path: Path, tensors: dict[str, Array], forms: dict[str, Form], metadata: dict[str, str]
) -> None:
    """Write one safetensors file. Widest elements first, as its own library has them, so that each lies aligned."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, leaf in ordered:
        dtype, shape = forms[name]
        end = position + _bytes(leaf)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, leaf in ordered:
            file.write(_native(stream.read(leaf.name), leaf).data)


def write_dcp(stream: Stream, parts: dict[str, Document], folder: Path) -> Exported:
    """Write the parts into `folder` as torch.distributed.checkpoint does from one process.

    raises  ExportFailed, OSError, and what reading the tensors raises
    """
    # Imported late: it takes as long as all else that the command imports.
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    from elastic_checkpoint.cli.export_dcp import Lazily

    leaves = [leaf for part, document in parts.items() for leaf in stream.entries(document, part)]
    tensors = {leaf.name: leaf for _, leaf in leaves if isinstance(leaf, Array) and isinstance(leaf.dtype, StoredDtype)}
    lazily = Lazily(stream, tensors)
    arrays = {
        leaf.name: torch.tensor(stream.read(leaf.name))
        for _, leaf in leaves
        if isinstance(leaf, Array) and leaf.name not in tensors
    }
    state = {part: decode(_without_strides(document), {**arrays, **lazily.empty}) for part, document in parts.items()}
    # One thread writes. With more, an error in one of them is lost and the save succeeds (pytorch#191391).
    writer = dcp.FileSystemWriter(
        folder, single_file_per_rank=True, sync_files=True, thread_count=1, per_thread_copy_ahead=0
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.save(state, storage_writer=writer, planner=lazily, no_dist=True)
        except CheckpointException as error:  # which is a BaseException, and prints stacks
            first = next(iter(error.failures.values()), (error, None))[0]
            if isinstance(first, CheckpointError):
                raise first from None
            raise OSError(f"torch.distributed.checkpoint: {type(first).__name__}: {first}") from None
    written = [leaf for _, leaf in leaves if isinstance(leaf, Array) and leaf.name in tensors]
    empty = tuple(path for path, leaf in leaves if not isinstance(leaf, Array) and leaf.text == "{}")
    return Exported(_sizes(folder), len(written), sum(map(_bytes, written)), {}, empty)


def _without_strides(document: Document) -> Document:
    """Return the same tree; its tensors lie in row-major order, as they do in storage."""
    if isinstance(document, list):
        return [_without_strides(item) for item in document]
    if not isinstance(document, dict):
        return document
    if document.get(TAG) == "tensor":
        return {key: value for key, value in document.items() if key != "stride"}
    return {key: _without_strides(value) for key, value in document.items()}


def split(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Name in groups of at most `limit` bytes each, in their order; what is larger is a group of its own. Pure."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _named_tensors(stream: Stream, parts: dict[str, Document]) -> tuple[dict[str, Array], list[str]]:
    tensors: dict[str, Array] = {}
    left_out: list[str] = []
    for part, document in parts.items():
        for path, leaf in stream.entries(document, part if len(parts) > 1 else ""):
            name = path or part
            if not isinstance(leaf, Array) or _torch_dtype(leaf) is None:
                left_out.append(name)
            elif name in tensors:
                raise ExportFailed(
                    f"two tensors are called {name!r}, since one key has a dot in it\n"
                    "  state  nothing was written\n  next   export with --to dcp, or one part at a time"
                )
            else:
                tensors[name] = leaf
    if not tensors:
        raise ExportFailed(
            f"there is no tensor in {', '.join(parts)}\n"
            "  state  nothing was written\n"
            "  next   choose another --part; elastic checkpoint digest names those with tensors"
        )
    return tensors, left_out


def _torch_dtype(leaf: Array) -> torch.dtype | None:
    """Return the dtype in torch; None for text, times and whatever else it has none for."""
    if isinstance(leaf.dtype, StoredDtype):
        return torch_dtype(leaf.dtype)
    try:
        return torch.from_numpy(np.empty(0, leaf.dtype.newbyteorder("="))).dtype
    except TypeError:
        return None


def _native(data: Bytes, leaf: Array) -> Bytes:
    """Return an array's bytes in the order that torch has them in."""
    if isinstance(leaf.dtype, StoredDtype) or leaf.dtype.isnative:
        return data
    return data.view(leaf.dtype).astype(leaf.dtype.newbyteorder("=")).view(np.uint8)


def _bytes(leaf: Array) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _untie(tensors: dict[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return those to write, and other name -> name. A checkpoint's tied tensors are stored once."""
    first: dict[str, str] = {}
    tied = {
        name: kept
        for name, leaf in tensors.items()
        if isinstance(leaf.dtype, StoredDtype) and (kept := first.setdefault(leaf.name, name)) != name
    }
    return {name: leaf for name, leaf in tensors.items() if name not in tied}, tied


def _forms(tensors: dict[str, Array]) -> dict[str, Form]:
    """Return each tensor's dtype and shape as safetensors has them. Raises ExportFailed where it has no such dtype."""
    found, bad = {}, []
    for name, leaf in tensors.items():
        form = _form(leaf)
        if form is None:
            bad.append(f"{name} ({leaf.dtype})")
        else:
            found[name] = form
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise ExportFailed(
            f"safetensors has no such dtype: {', '.join(bad[:5])}{more}\n"
            "  state  nothing was written\n  next   export with --to dcp"
        )
    return found


def _form(leaf: Array) -> Form | None:
    """Return how safetensors holds this; it is asked, about nothing of this shape, for that depends on its version."""
    try:
        data = safetensors.torch.save({"x": torch.empty((0, *leaf.shape), dtype=_torch_dtype(leaf))})
    except KeyError:
        return None
    asked = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["x"]
    return asked["dtype"], asked["shape"][1:]


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [f"{_WEIGHTS}.safetensors"]
    return [f"{_WEIGHTS}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _inside(stream: Stream, part: Document) -> str:
    count = sum(isinstance(leaf, Array) for _, leaf in stream.entries(part))
    return f"{count} tensor{'' if count == 1 else 's'}" if count else "no tensors"

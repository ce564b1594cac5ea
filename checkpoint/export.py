"""A checkpoint for other tools: one folder of safetensors as on the Hugging Face hub, or of torch's own DCP format.

safetensors  model.safetensors; beyond `max_shard_bytes` model-00001-of-00003.safetensors and so on, and
             model.safetensors.index.json. Tensors only, under the names of the part's state_dict(); with several parts
             the part's name comes first. Of tied tensors the one that is met first is written, which is what
             transformers keeps of an embedding and its head; the file's metadata (the index's, if there are several
             files) maps the other names to it, and `safetensors.torch.load_model` ties them again.
dcp          what torch.distributed.checkpoint.load reads, tensors and plain values, below the parts' names:
             `dcp.load({"model": model.state_dict()}, checkpoint_id=folder)`. The format holds pickles.

The folder appears whole or not at all: everything is written under a temporary name beside it, fsynced, then renamed.
A crash before leaves a folder `.<name>.<12 digits>.tmp`, which may be deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from checkpoint.errors import CheckpointError
from checkpoint.tree import Tree, child

MAX_SHARD_BYTES = 5 * 10**9

_WEIGHTS = "model"


class ExportFailed(CheckpointError):
    """Nothing was exported: the folder is not there, or is as it was."""


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


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """An empty folder to write into, which becomes `out` if the block ends well and goes if it does not.

    Raises `ExportFailed` where `out` is anything but absent or an empty folder, or cannot be made.
    """
    target = Path(os.path.realpath(out.expanduser()))
    if os.path.lexists(target) and not target.is_dir():
        raise _refused(target, "is a file", "a new name, or an empty folder")
    try:
        if target.is_dir() and any(target.iterdir()):
            raise _refused(target, f"holds {sum(1 for _ in target.iterdir())} files", "a new name, or an empty folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
        folder.mkdir()
    except OSError as error:
        raise _refused(target, f"cannot be made: {error.strerror or error}", "a folder that may be written") from error
    try:
        yield folder
        _publish(folder, target)
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is there any more if it was renamed


def select(tree: Tree, parts: Sequence[str], where: str) -> dict[str, Tree]:
    """These top-level parts of a checkpoint's tree. Raises `ExportFailed` that lists those there are.

    where  names the checkpoint in the error
    """
    there = {str(key): value for key, value in tree.items()} if isinstance(tree, dict) else {}
    missing = [part for part in parts if part not in there]
    if missing:
        named = ", ".join(f"{name} ({_inside(value)})" for name, value in there.items())
        raise ExportFailed(
            f"{where} has no part {', '.join(missing)}\n"
            f"  found  {named or f'a {type(tree).__name__}, which has no parts'}\n"
            "  state  nothing was written\n  next   choose with --part NAME, which may be given several times"
        )
    return {part: there[part] for part in dict.fromkeys(parts)}


def write_safetensors(
    parts: dict[str, Tree],
    folder: Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    wrote: Callable[[int], object] = lambda count: None,
) -> Exported:
    """Writes the parts' tensors into `folder` in Hugging Face's layout. `wrote` gets the bytes of each finished file.

    memory  nothing but what is not contiguous is copied
    raises  ExportFailed, OSError
    """
    tensors, left_out = _named_tensors(parts)
    kept, tied = _untie(tensors)
    _check_storable(kept)
    shards = split({name: tensor.nbytes for name, tensor in kept.items()}, max_shard_bytes)
    files = _file_names(len(shards))
    header = {"format": "pt"} | (tied if len(shards) == 1 else {})
    mode = folder.stat().st_mode & 0o666
    for file, names in zip(files, shards, strict=True):
        batch = {name: kept[name].contiguous() for name in names}
        try:
            safetensors.torch.save_file(batch, folder / file, metadata=header)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        (folder / file).chmod(mode)  # it is made readable by its owner only
        wrote(sum(tensor.nbytes for tensor in batch.values()))
    total = sum(tensor.nbytes for tensor in kept.values())
    if len(shards) > 1:
        places = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total, **tied}, "weight_map": places}
        (folder / f"{_WEIGHTS}.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return Exported(_sizes(folder), len(kept), total, tied, tuple(left_out))


def write_dcp(parts: dict[str, Tree], folder: Path) -> Exported:
    """Writes the parts into `folder` as torch.distributed.checkpoint does from one process.

    raises  ExportFailed, OSError
    """
    # Imported late: it takes as long as all else that the command imports.
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    # One thread writes. With more, an error in one of them is lost and the save succeeds (pytorch#191391).
    writer = dcp.FileSystemWriter(folder, single_file_per_rank=True, sync_files=True, thread_count=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.save(parts, storage_writer=writer, no_dist=True)
        except CheckpointException as error:  # which is a BaseException, and prints stacks
            first = next(iter(error.failures.values()), (error, None))[0]
            raise OSError(f"torch.distributed.checkpoint: {type(first).__name__}: {first}") from None
    tensors = [leaf for _, leaf in _leaves(parts, "") if isinstance(leaf, torch.Tensor)]
    empty = tuple(path for path, leaf in _leaves(parts, "") if isinstance(leaf, dict))
    return Exported(_sizes(folder), len(tensors), sum(tensor.nbytes for tensor in tensors), {}, empty)


def split(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Names in groups of at most `limit` bytes each, in their order; what is larger is a group of its own. Pure."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _named_tensors(parts: dict[str, Tree]) -> tuple[dict[str, torch.Tensor], list[str]]:
    tensors: dict[str, torch.Tensor] = {}
    left_out: list[str] = []
    for part, tree in parts.items():
        for path, leaf in _leaves(tree, part if len(parts) > 1 else ""):
            name, tensor = path or part, _as_tensor(leaf)
            if tensor is None:
                left_out.append(name)
            elif name in tensors:
                raise ExportFailed(
                    f"two tensors are called {name!r}, since one key has a dot in it\n"
                    "  state  nothing was written\n  next   export with --to dcp, or one part at a time"
                )
            else:
                tensors[name] = tensor
    if not tensors:
        raise ExportFailed(
            f"there is no tensor in {', '.join(parts)}\n"
            "  state  nothing was written\n  next   choose another --part; checkpoint digest names those with tensors"
        )
    return tensors, left_out


def _leaves(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Everything that holds nothing, under its path; empty containers too."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, child(path, key))
    elif isinstance(tree, list | tuple) and tree:
        for index, value in enumerate(tree):
            yield from _leaves(value, child(path, index))
    else:
        yield path, tree


def _as_tensor(leaf: object) -> torch.Tensor | None:
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, np.ndarray):
        try:
            return torch.from_numpy(np.ascontiguousarray(leaf, leaf.dtype.newbyteorder("=")))
        except TypeError:  # text, times and whatever else torch has no dtype for
            return None
    return None


def _untie(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Those to write, and other name -> name. A checkpoint's tied tensors are one object."""
    first: dict[int, str] = {}
    tied = {name: kept for name, tensor in tensors.items() if (kept := first.setdefault(id(tensor), name)) != name}
    return {name: tensor for name, tensor in tensors.items() if name not in tied}, tied


def _check_storable(tensors: dict[str, torch.Tensor]) -> None:
    bad = [f"{name} ({str(one.dtype).removeprefix('torch.')})" for name, one in tensors.items() if not _storable(one)]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise ExportFailed(
            f"safetensors has no such dtype: {', '.join(bad[:5])}{more}\n"
            "  state  nothing was written\n  next   export with --to dcp"
        )


def _storable(tensor: torch.Tensor) -> bool:
    """What safetensors can hold depends on its version, so it is asked."""
    try:
        safetensors.torch.save({"x": tensor.new_empty(0)})
    except KeyError:
        return False
    return True


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [f"{_WEIGHTS}.safetensors"]
    return [f"{_WEIGHTS}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _publish(folder: Path, target: Path) -> None:
    """Makes the folder visible under its name, in one instant and for good."""
    for path in [*folder.iterdir(), folder]:
        _fsync(path)
    os.rename(folder, target)  # replaces an empty folder, and fails if somebody has filled it meanwhile
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _inside(part: Tree) -> str:
    leaves = [leaf for _, leaf in _leaves(part, "")]
    count = sum(isinstance(leaf, torch.Tensor | np.ndarray) for leaf in leaves)
    return f"{count} tensor{'' if count == 1 else 's'}" if count else "no tensors"


def _refused(target: Path, found: str, expected: str) -> ExportFailed:
    return ExportFailed(
        f"{target} {found}\n  expected  {expected}\n"
        "  state     nothing was read or written\n  next      give another OUT, or remove what is there"
    )


def _failed(target: Path, error: OSError) -> ExportFailed:
    return ExportFailed(
        f"{target} could not be written: {error}\n"
        f"  state  nothing of it is left; the checkpoint is as it was\n"
        f"  next   see whether {target.parent} has room and may be written, then export again"
    )

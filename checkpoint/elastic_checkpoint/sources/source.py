"""What a source gives: a tree of plain values and tensors, whose bytes stay in its files until they are wanted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.document import Tree

if TYPE_CHECKING:
    import torch


class BadSource(CheckpointError):
    """Nothing was imported: the source cannot be read, or holds what must not be."""


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True)
class Source:
    """A checkpoint of another tool.

    form      "torch", "safetensors" or "dcp"
    tree      its content. Tensors are mapped files, or have a dtype and a shape and nothing else
    fetch     the tensor that one of these stands for; for a little while only, so that memory is needed for one
    tied      name that the file's metadata maps to another one -> that one; both are in the tree
    left_out  names of what lies there and is not part of it
    """

    form: str
    tree: Tree
    fetch: Callable[[torch.Tensor], torch.Tensor] = as_it_is
    tied: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def bad(path: Path, found: str, advice: str) -> BadSource:
    return BadSource(f"{path}: {found}\n  state  nothing was imported\n  next   {advice}")


def some(names: Sequence[Any], most: int = 6) -> str:
    """Return, for an error, the first of them, and how many more there are."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def read_index(path: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return what an index of Hugging Face's says: file -> names of its tensors, and the text entries of its metadata.

    Raises `BadSource`, also for a file that lies elsewhere.
    """
    try:
        document = json.loads(path.read_bytes())
        weight_map, metadata = document["weight_map"], document.get("metadata") or {}
        files: dict[str, list[str]] = {}
        for name, file in weight_map.items():
            files.setdefault(file, []).append(name)
        texts = {key: value for key, value in metadata.items() if type(value) is str}
        outside = [file for file in files if type(file) is not str or Path(file).name != file or file in (".", "..")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise bad(path, f"is no index of files: {type(error).__name__}: {error}", "fetch it again") from error
    if outside:
        raise bad(path, f"names files outside of its folder: {some(outside)}", "do not trust this source")
    absent = [file for file in files if not (path.parent / file).is_file()]
    if absent:
        raise bad(path, f"names files that are not there: {some(absent)}", "fetch these, too")
    return files, texts

"""Hugging Face's safetensors: one file, or a folder of several with an index. Files are mapped, not read.

Of tied tensors only one is in the files. Where their metadata maps the other name to it, as safetensors.torch's
save_model and `elastic checkpoint export` have it, both come back, tied; transformers writes no such entry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from elastic_checkpoint.sources.source import Source, bad, read_index, some

_INDEX = "*.safetensors.index.json"


def read_safetensors(path: Path) -> Source:
    """Return the tensors by their names. Raises `BadSource`."""
    files, metadata = _files(path)
    tensors: dict[str, torch.Tensor] = {}
    left_out: list[str] = []
    for file, wanted in files.items():
        found, texts = _read(file)
        missing = sorted(name for name in wanted or () if name not in found)
        if missing:
            raise bad(file, f"lacks tensors that the index says it holds: {some(missing)}", "fetch it again")
        left_out += [name for name in found if wanted is not None and name not in wanted]
        tensors.update({name: tensor for name, tensor in found.items() if wanted is None or name in wanted})
        metadata = texts | metadata
    if not tensors:
        raise bad(path, "holds no tensor", "give another file")
    tied = {name: kept for name, kept in sorted(metadata.items()) if name not in tensors and kept in tensors}
    tied.pop("format", None)
    tensors.update({name: tensors[kept] for name, kept in tied.items()})
    return Source("safetensors", tensors, tied=tied, left_out=tuple(left_out))


def _files(path: Path) -> tuple[dict[Path, set[str] | None], dict[str, str]]:
    """Return each file with the names that count, None for all; and the index's metadata."""
    if path.is_file() and not path.name.endswith(_INDEX[1:]):
        return {path: None}, {}
    indexes = [path] if path.is_file() else sorted(path.glob(_INDEX))
    files = [] if path.is_file() else sorted(path.glob("*.safetensors"))
    if len(indexes) == 1:
        held, metadata = read_index(indexes[0])
        return {indexes[0].parent / file: set(names) for file, names in held.items()}, metadata
    if not indexes and len(files) == 1:
        return {files[0]: None}, {}
    what = [one.name for one in indexes or files]
    raise bad(path, f"has {len(what)} of which one is meant: {some(what)}", "give this file instead of the folder")


def _read(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    name = None
    try:
        opened: Any = safe_open(file, framework="pt", device="cpu")
        with opened as reader:
            tensors = {}
            for name in list(reader.keys()):
                tensors[name] = reader.get_tensor(name)
            return tensors, dict(reader.metadata() or {})
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        where = f"its tensor {name} cannot be read" if name is not None else "is no whole safetensors file"
        raise bad(
            file, f"{where}: {type(error).__name__}: {error}", "fetch it again; see which dtypes it has"
        ) from error

"""Files of torch.save, and Hugging Face's folders of them: read with weights_only, so nothing that they name is run.

A file in today's format is mapped, not read; one from before torch 1.6 is read whole.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from elastic_checkpoint.sources.source import BadSource, Source, bad, read_index, some

_GLOBAL = re.compile(r"(?:GLOBAL|got|instantiate) +(?:<?class )?'?(\w+(?:\.\w+)+)")
_SAFE_AGAIN = (
    "save it again where it is trusted, without these: state_dict()s, tensors and plain values. Whatever else a "
    "pickle names is code that would run here"
)


def read_torch(path: Path) -> Source:
    """Return the content of a file, or of the files that an index names. Raises `BadSource`."""
    if path.is_file() and not path.name.endswith(".index.json"):
        return Source("torch", load(path))
    indexes = [path] if path.is_file() else sorted(path.glob("*.bin.index.json"))
    files = [] if path.is_file() else [one for end in ("bin", "pt", "pth") for one in sorted(path.glob(f"*.{end}"))]
    if not indexes and len(files) == 1:
        return Source("torch", load(files[0]))
    if len(indexes) != 1:
        what = [one.name for one in indexes or files]
        raise bad(path, f"has {len(what)} of which one is meant: {some(what)}", "give this file instead of the folder")
    tensors: dict[str, Any] = {}
    left_out: list[str] = []
    held, _ = read_index(indexes[0])
    for file, names in held.items():
        found = load(indexes[0].parent / file)
        missing = [name for name in names if not isinstance(found, dict) or name not in found]
        if missing:
            raise bad(
                indexes[0].parent / file, f"lacks tensors that the index names: {some(missing)}", "fetch it again"
            )
        tensors.update({name: found[name] for name in names})
        left_out += [str(name) for name in found if name not in set(names)]
    return Source("torch", tensors, left_out=tuple(left_out))


def load(path: Path) -> Any:
    """Return what a file of torch.save holds. Raises `BadSource`, which names what weights_only refuses."""
    try:
        mapped = zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises what it likes about bytes that it did not write
        raise _refused(path, path, "it", error) from error


def load_part(file: BinaryIO, path: Path, what: str) -> Any:
    """Return what `load` does, of a part of a file."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _refused(file, path, what, error) from error


def _refused(file: Path | BinaryIO, path: Path, what: str, error: Exception) -> BadSource:
    named = _GLOBAL.findall(str(error)) if isinstance(error, pickle.UnpicklingError) else []
    names = sorted({*named, *(_unsafe(file) if named else ())})
    if names:
        return bad(path, f"{what} holds more than tensors and plain values: {some(names)}", _SAFE_AGAIN)
    first = next(iter(str(error).splitlines()), "")[:300]
    return bad(
        path, f"{what} cannot be read: {type(error).__name__}: {first}", "see whether torch.save wrote it, whole"
    )


def _unsafe(file: Path | BinaryIO) -> list[str]:
    """Return all that the file names and weights_only refuses, as far as can be told; torch's error names the first."""
    try:
        if not isinstance(file, Path):
            file.seek(0)
        return torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:
        return []

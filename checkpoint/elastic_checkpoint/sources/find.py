"""Which of the known formats lies at a path? Looks at names and first bytes only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from elastic_checkpoint.format.names import COMMITS
from elastic_checkpoint.sources.dcp import METADATA, read_dcp
from elastic_checkpoint.sources.safetensors import read_safetensors
from elastic_checkpoint.sources.source import BadSource, Source, bad, some
from elastic_checkpoint.sources.torch_file import read_torch

READERS: dict[str, Callable[[Path], Source]] = {
    "torch": read_torch,
    "safetensors": read_safetensors,
    "dcp": read_dcp,
}
_EXPECTED = "a file of torch.save, a safetensors file or a folder of them, or a folder of DCP"


def open_source(text: str, form: str | None = None) -> Source:
    """Return what lies at a path of this machine. Raises `BadSource`."""
    if "://" in text:
        raise BadSource(
            "SOURCE is a URL, and sources are read from this machine only\n"
            "  state  nothing was imported\n  next   fetch it first, then give the path"
        )
    path = Path(os.path.expanduser(text))
    if not path.exists():
        raise bad(path, "there is no such file or folder", "check the path")
    return READERS[form or form_of(path)](path)


def form_of(path: Path) -> str:
    """Return the name of the format. Raises `BadSource`."""
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir())
        if METADATA in names:
            return "dcp"
        for end, form in ((".safetensors", "safetensors"), (".safetensors.index.json", "safetensors")):
            if any(name.endswith(end) for name in names):
                return form
        if any(name.endswith((".bin.index.json", ".bin", ".pt", ".pth")) for name in names):
            return "torch"
        if COMMITS in names:
            raise bad(path, "is a run of this package already", "load from it, or copy the folder")
        raise bad(path, f"a folder with {some(names) or 'nothing in it'}", f"give {_EXPECTED}")
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return "safetensors"
    if path.name == METADATA or path.suffix == ".distcp":
        return "dcp"
    with open(path, "rb") as file:
        head = file.read(9)
    if head[:2] in (b"PK", b"\x80\x02") or path.name.endswith(".bin.index.json"):
        return "torch"
    if head[8:] == b"{":
        return "safetensors"
    raise bad(path, f"begins with {head!r}, which none of the known formats does", f"give {_EXPECTED}")

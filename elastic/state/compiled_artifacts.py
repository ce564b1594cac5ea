"""Takes what torch's compiler has made in this process, as pieces, and gives it to the compiler of another one.

torch keeps what it compiles in a folder of the machine (TORCHINDUCTOR_CACHE_DIR), and gives it away as "cache
artifacts". Those lack the libraries of C++ kernels, which are compiled anew from their sources (read in 2.13), and
which are therefore taken from that folder here.

Promises  `recorded` holds what this process compiled, or found compiled, at no cost but for references; `pieces` is all
          of it, with the libraries. Equal names stand for equal code.
          `load` puts files where torch looks, which unpickles them, there or when it compiles what they stand for, and
          runs their code: only what this run made may ever come here.
          `machine` is equal only where this code can run: torch's own keys do not tell processors apart.
          Nothing here imports the compiler where no script has.
Leaves    out: profiles of sizes met (pgo), which make other kernels, and under exact mode what was chosen by the clock.
          This file, compilations.py and compiled.py are the only ones that touch torch's compiler: tests/processes/
          test_compiled_artifacts.py and test_compile_cache.py notice a change.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elastic.membership.environment import processor_settings
from elastic.state.compiled import compiler_name
from elastic.state.processor import all_flags, processor

LIBRARY = "library"
_KINDS = ("inductor", "aot_autograd", "autotune")
_BY_THE_CLOCK = ("autotune",)
_LIBRARY_PATH = re.compile(r"[a-z0-9]{2}/[a-z0-9]{8,80}(\.main)?\.so")
_SOURCE, _KERNEL = ".main.cpp", ".main.so"
_CHECKS_A_PROCESSOR = b"_chk_kernel"
_CHECK_BYTES_MAX = 1 << 12


@dataclass(frozen=True)
class Piece:
    """One result of torch's compiler, under its key.

    kind     torch's word for it, or LIBRARY
    key      torch's; of a library its path below torch's folder
    content  or the file that has it
    """

    kind: str
    key: str
    content: bytes | Path

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.key}"

    @property
    def nbytes(self) -> int:
        """Return the size of its content. Raises OSError, as `read`."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def read(self) -> bytes:
        """Return its content, from the file where it is in one. Raises OSError."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()

    @classmethod
    def named(cls, name: str, content: bytes) -> Piece:
        """Return the piece of this name. Raises ValueError for a name that no piece can have."""
        kind, _, key = name.partition(":")
        if kind not in (*_KINDS, LIBRARY):
            raise ValueError(f"{name!r} is nothing that is compiled")
        if kind == LIBRARY and not _LIBRARY_PATH.fullmatch(key):
            raise ValueError(f"{key!r} is no place for a library")
        return cls(kind, key, content)


def is_in_use() -> bool:
    """Return whether somebody has asked for torch's own compiler, inductor, in this process."""
    return "torch._inductor.compiler_bisector" in sys.modules


def recorded(*, chosen_by_the_clock: bool) -> list[Piece]:
    """Return what this process has compiled, or found compiled, but for libraries.

    Not to be called while something is compiled. chosen_by_the_clock: also which kernels were fastest
    """
    from torch.compiler._cache import CacheArtifactManager

    kinds = [kind for kind in _KINDS if chosen_by_the_clock or kind not in _BY_THE_CLOCK]
    made = ((one.type(), one) for one in list(CacheArtifactManager._seen_artifacts))
    return [Piece(kind, one.key, one.content) for kind, one in made if kind in kinds]


def pieces(made: Iterable[Piece]) -> dict[str, Piece]:
    """Return `made` and the libraries of this process as pieces by name; the files stay where they are."""
    libraries = (Piece(LIBRARY, path, file) for path, file in _libraries().items())
    return {piece.name: piece for piece in (*made, *libraries)}


def load(found: Collection[Piece]) -> None:
    """Give pieces to torch's compiler. Raises OSError, ValueError, and what torch raises for other versions."""
    from torch.compiler._cache import _serialize_single_cache
    from torch.utils._appending_byte_serializer import AppendingByteSerializer

    folder = _folder()
    for piece in found:
        if piece.kind == LIBRARY and not (folder / piece.key).exists():
            _write_whole(folder / piece.key, piece.read())
    serializer: Any = AppendingByteSerializer(serialize_fn=_serialize_single_cache)
    # One entry of each kind: of several, torch 2.13 loads the last.
    serializer.extend((kind, [piece for piece in found if piece.kind == kind]) for kind in _KINDS)
    if torch.compiler.load_cache_artifacts(serializer.to_bytes()) is None:
        raise ValueError("torch could not read it; its log says why")


def skip_headers() -> Callable[[], None]:
    """Keep torch from compiling a header while no kernel is missing, until what is returned is called."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache as Kernels

    before = vars(Kernels)["_get_uncompiled_header"]
    plain = Kernels._get_uncompiled_header

    def header(device: str) -> str | None:
        # torch compiles it before it looks whether the kernel is there, which takes longer than a kernel
        return plain(device) if _lacks_a_kernel() else None

    def undo() -> None:
        if vars(Kernels)["_get_uncompiled_header"] is skipping:
            Kernels._get_uncompiled_header = before  # type: ignore[method-assign]

    skipping = staticmethod(header)
    Kernels._get_uncompiled_header = skipping  # type: ignore[method-assign]
    return undo


def machine(device: torch.device) -> dict[str, Any]:
    """Return what must be equal for code compiled here to run on another machine, and to be what that would compile."""
    return {
        "torch": [torch.__version__, torch.version.git_version, torch.version.cuda, torch.version.hip],
        "python": sys.version,
        "system": [sys.platform, *platform.libc_ver()],
        "processor": processor(portable=False),
        "flags": all_flags(),
        "settings": processor_settings(),
        "compiler": compiler_name(),
        "triton": _version_of("triton"),
        "gpu": _gpu(device) if device.type == "cuda" else None,
    }


def _gpu(device: torch.device) -> list[Any]:
    about = torch.cuda.get_device_properties(device)
    return [about.name, about.major, about.minor, about.multi_processor_count]


def _version_of(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _folder() -> Path:
    """Return torch's own folder of compiled code, on this machine."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def _libraries() -> dict[str, Path]:
    """Return the files of this process's C++ kernels and of torch's processor checks, by path below torch's folder.

    Torch compiles the checks to learn which instructions there are. Others may be compiling here, too. Kernels that
    this process has loaded are whole, and so are the checks once it has: it has waited for them.
    """
    folder = _folder()
    origins = [getattr(getattr(module, "__spec__", None), "origin", None) for module in list(sys.modules.values())]
    files = [Path(origin) for origin in origins if isinstance(origin, str) and origin.endswith(_KERNEL)]
    loaded = [file for file in files if folder in file.parents]
    if not loaded:
        return {}
    checks = [file.with_suffix(".so") for file in folder.glob("??/*.cpp") if _is_check(file)]
    inside = {file.relative_to(folder).as_posix(): file for file in (*loaded, *checks)}
    return {path: file for path, file in inside.items() if _LIBRARY_PATH.fullmatch(path) and file.is_file()}


def _lacks_a_kernel() -> bool:
    """Return whether a source has no kernel yet: torch writes a kernel's source before it asks for the header."""
    sources = _folder().glob(f"??/*{_SOURCE}")
    return any(not source.with_name(source.name.replace(_SOURCE, _KERNEL)).exists() for source in sources)


def _is_check(source: Path) -> bool:
    """Return whether torch has written this source to learn which instructions there are."""
    with contextlib.suppress(OSError):
        return source.stat().st_size < _CHECK_BYTES_MAX and _CHECKS_A_PROCESSOR in source.read_bytes()
    return False


def _write_whole(file: Path, content: bytes) -> None:
    """Write a file so that its name has all of it or nothing: others on this machine may look for it, too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".elastic-")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise

"""What torch's compiler has made in this process, as bytes, and given to the compiler of another one.

torch keeps what it compiles in a folder of the machine (TORCHINDUCTOR_CACHE_DIR), and gives it away as "cache
artifacts". Those lack the libraries of C++ kernels, which are compiled anew from their sources (read in 2.13), and
which are therefore taken from that folder here.

Promises  `recorded` gives what this process compiled, or found compiled, and `known` does not name.
          `load` puts files where torch looks, which unpickles them, there or when it compiles what they stand for, and
          runs their code: only what this run made may ever come here.
          `machine` is equal only where this code can run: torch's own keys do not tell processors apart.
          Nothing here imports the compiler where no script has.
Leaves    out: profiles of sizes met (pgo), which make other kernels, and under exact mode what was chosen by the clock.
          This file and compiled.py are the only ones that touch torch's compiler: tests/processes/
          test_compile_cache.py notices a change.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elastic.membership.environment import processor_settings
from elastic.state.compiled import compiler_name
from elastic.state.processor import all_flags, processor

_KINDS = ("inductor", "aot_autograd")
_BY_THE_CLOCK = ("autotune",)
_LIBRARY = re.compile(r"[a-z0-9]{2}/[a-z0-9]{8,80}(\.main)?\.so")
_KERNEL = ".main.so"
_CHECKS_A_PROCESSOR = b"chk_kernel("
_CHECK_BYTES_MAX = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Artifacts:
    """
    names      of all that is in it
    torch      what torch.compiler.load_cache_artifacts takes
    libraries  path below torch's folder -> content
    """

    names: frozenset[str]
    torch: bytes
    libraries: dict[str, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of what is in it."""
        return len(self.torch) + sum(map(len, self.libraries.values()))

    def encoded(self) -> bytes:
        libraries = {path: len(content) for path, content in self.libraries.items()}
        head = json.dumps({"names": sorted(self.names), "torch": len(self.torch), "libraries": libraries})
        return b"".join((head.encode(), b"\n", self.torch, *self.libraries.values()))

    @classmethod
    def decode(cls, content: bytes) -> Artifacts:
        """Raises ValueError for what `encoded` did not make."""
        line, _, rest = content.partition(b"\n")
        try:
            head = json.loads(line)
            names, end, sizes = frozenset(head["names"]), int(head["torch"]), dict(head["libraries"])
        except (KeyError, TypeError) as wrong:
            raise ValueError(f"its first line has no {wrong}") from wrong
        made, libraries = rest[:end], {}
        for path, size in sizes.items():
            if not _LIBRARY.fullmatch(path):
                raise ValueError(f"{path!r} is no place for a library")
            libraries[path], end = rest[end : end + size], end + size
        if end != len(rest):
            raise ValueError(f"it has {len(rest):,} bytes, and its first line says {end:,}")
        return cls(names=names, torch=made, libraries=libraries)


def is_in_use() -> bool:
    """Whether somebody has asked for torch's own compiler, inductor, in this process."""
    return "torch._inductor.compiler_bisector" in sys.modules


def watch(*, begins: Callable[[], None], ended: Callable[[], None]) -> Callable[[], None] | None:
    """Has these called around each compilation, until what is returned is called. None: no script can compile yet."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return None
    handler = dynamo.callback_handler
    callbacks = ((handler.start_callbacks, lambda _: begins()), (handler.end_callbacks, lambda _: ended()))
    for those, one in callbacks:
        those.append(one)

    def remove() -> None:
        for those, one in callbacks:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset() forgets all
                those.remove(one)

    return remove


def recorded(known: Collection[str], *, chosen_by_the_clock: bool) -> Artifacts | None:
    """What this process has compiled, or found compiled, beyond what is known; None: nothing.

    Not while something is compiled. chosen_by_the_clock: also which kernels were fastest
    """
    from torch.compiler._cache import _deserialize_single_cache, _serialize_single_cache
    from torch.utils._appending_byte_serializer import AppendingByteSerializer

    kinds = (*_KINDS, *(_BY_THE_CLOCK if chosen_by_the_clock else ()))
    libraries = {path: file for path, file in _libraries().items() if path not in known}
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        return None
    all_made = AppendingByteSerializer.to_list(saved[0], deserialize_fn=_deserialize_single_cache)
    news = {f"{kind}:{one.key}": (kind, one) for kind, some in all_made if kind in kinds for one in some}
    news = {name: one for name, one in news.items() if name not in known}
    if not news and not libraries:
        return None
    serializer = AppendingByteSerializer(serialize_fn=_serialize_single_cache)
    # One entry of each kind: of several, torch 2.13 loads the last.
    serializer.extend((kind, [one for its, one in news.values() if its == kind]) for kind in kinds)
    return Artifacts(
        names=frozenset((*news, *libraries)),
        torch=serializer.to_bytes(),
        libraries={path: file.read_bytes() for path, file in libraries.items()},
    )


def load(artifacts: Artifacts) -> None:
    """Raises OSError, and whatever torch raises for what its own version did not make."""
    folder = _folder()
    for path, content in artifacts.libraries.items():
        if not (folder / path).exists():
            _write_whole(folder / path, content)
    _skip_headers(sum(path.endswith(_KERNEL) for path in artifacts.libraries))
    if torch.compiler.load_cache_artifacts(artifacts.torch) is None:
        raise ValueError("torch could not read it; its log says why")


def machine(device: torch.device) -> dict[str, Any]:
    """What decides whether code that was compiled here runs on another machine, and is what it would compile itself."""
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
    """torch's own, on this machine."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def _libraries() -> dict[str, Path]:
    """Path below torch's folder -> file: the C++ kernels of this process, and what torch compiles to learn which
    instructions there are."""
    folder = _folder()
    origins = [getattr(getattr(module, "__spec__", None), "origin", None) for module in list(sys.modules.values())]
    loaded = [Path(origin) for origin in origins if isinstance(origin, str) and origin.endswith(".so")]
    checks = [file.with_suffix(".so") for file in folder.glob("??/*.cpp") if _is_check(file)]
    inside = {file.relative_to(folder).as_posix(): file for file in (*loaded, *checks) if folder in file.parents}
    return {path: file for path, file in inside.items() if _LIBRARY.fullmatch(path) and file.is_file()}


def _skip_headers(count: int) -> None:
    """torch compiles a header before it looks whether the kernel is there, which takes longer than a kernel: not before
    the next `count` kernels. Where one of them is not there after all, it is compiled without."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    plain, skipped = CppPythonBindingsCodeCache._get_uncompiled_header, iter(range(count))

    def header(device: str) -> str | None:
        return None if next(skipped, None) is not None else plain(device)

    CppPythonBindingsCodeCache._get_uncompiled_header = header  # type: ignore[method-assign]


def _is_check(source: Path) -> bool:
    with contextlib.suppress(OSError):
        return source.stat().st_size < _CHECK_BYTES_MAX and _CHECKS_A_PROCESSOR in source.read_bytes()
    return False


def _write_whole(file: Path, content: bytes) -> None:
    """Under its name there is all of it, or nothing: others on this machine may look for it, too."""
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

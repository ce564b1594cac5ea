"""Describes this processor, as far as the libraries beneath torch choose their code by it.

"AVX512" alone does not say: oneDNN and MKL look at the maker, at each extension (bf16, AMX, ...) and at the sizes of
the caches, from which they cut their blocks, and so the order of their sums.

Promises  `processor` is equal exactly where they have nothing to choose by. With the instruction set pinned
          (portable=True), extensions and the model have no say any more: what is left is the maker, whom MKL asks for
          (its AVX2 branch is promised for Intel's own alone), and the caches.
Limits    Linux on x86-64 for the maker and the model; elsewhere they are missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

_EXTENSIONS = ("avx", "amx", "fma", "f16c", "sse4", "bmi", "sve", "neon", "asimd", "bf16", "i8mm", "dot")


def processor(*, portable: bool) -> dict[str, Any]:
    """Return the fields by which libraries choose code: fewer where the instruction set is pinned (`portable`)."""
    found = dict(torch.cpu.get_capabilities())
    about = _described(Path("/proc/cpuinfo"))
    known: dict[str, Any] = {
        "architecture": found.get("architecture"),
        "maker": about.get("vendor_id"),
        "l1d_bytes": found.get("l1d_cache_size"),
        "l2_bytes": found.get("l2_cache_size"),
    }
    if portable:
        return known
    known["model"] = " ".join(about[name] for name in ("cpu family", "model") if name in about) or found.get("cpu_name")
    known["extensions"] = sorted(name for name, has in found.items() if has is True and name.startswith(_EXTENSIONS))
    return known


def model_name() -> str | None:
    """Return what this processor is called, as the kernel has it, or else torch."""
    name = _described(Path("/proc/cpuinfo")).get("model name") or torch.cpu.get_capabilities().get("cpu_name")
    return str(name) if name else None


def all_flags() -> list[str]:
    """Return everything that this processor can do, as the kernel lists it: a compiler for this machine may use it."""
    about = _described(Path("/proc/cpuinfo"))
    return sorted((about.get("flags") or about.get("Features") or "").split())


def libraries() -> dict[str, str]:
    """Return the versions of what computes beneath torch: builds of one version of torch differ in them."""
    text = torch.__config__.show()
    patterns = {
        "mkl": r"Math Kernel Library Version (\S+)",
        "onednn": r"MKL-DNN v(\S+)",
        "blas": r"BLAS_INFO=(\w+)",
        "lapack": r"LAPACK_INFO=(\w+)",
    }
    return {name: one.group(1) for name, pattern in patterns.items() if (one := re.search(pattern, text)) is not None}


def _described(file: Path) -> dict[str, str]:
    """Return what the kernel says of the first processor, by name; nothing where it cannot be read."""
    try:
        lines = file.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

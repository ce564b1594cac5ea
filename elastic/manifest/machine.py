"""What a worker computes with: python, torch, processor, GPUs, container. Nothing here touches a GPU or waits."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from elastic.state.processor import model_name

_NVIDIA = Path("/proc/driver/nvidia")
_DRIVER = re.compile(r"Kernel Module[^0-9]*?\s(\d+(?:\.\d+)+)\s")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_PRETTY_NAME = re.compile(r'^PRETTY_NAME="?([^"\n]*)', re.MULTILINE)
_OF_PODMAN = re.compile(r'^(image|imageid)="?([^"\n]*)', re.MULTILINE)
_CONTAINER_FILE = Path("/run/.containerenv")
IMAGE_VARIABLES = ("ELASTIC_IMAGE", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")


def python(environ: Mapping[str, str]) -> dict[str, Any]:
    names = [name for name in dir(sys.flags) if not name.startswith(("_", "n_")) and name not in ("count", "index")]
    flags = {name: value for name in names if (value := getattr(sys.flags, name)) and isinstance(value, bool | int)}
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "flags": {**flags, "hash_seed": environ.get("PYTHONHASHSEED")},
    }


def torch_build() -> dict[str, Any]:
    on_gpu = torch.version.cuda is not None
    has_nccl = on_gpu and torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else None  # type: ignore[no-untyped-call]
    return {
        "version": torch.__version__,
        "git": getattr(torch.version, "git_version", None),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, nccl)) if nccl is not None else None,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def machine() -> dict[str, Any]:
    distribution = _PRETTY_NAME.search(_text(Path("/etc/os-release")))
    driver = _DRIVER.search(_text(_NVIDIA / "version"))
    described = (_MODEL.search(_text(path)) for path in sorted(_NVIDIA.glob("gpus/*/information")))
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": distribution[1] if distribution else None,
        "libc": os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None,
        "processor": model_name(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": [found[1] for found in described if found is not None],
        "driver": driver[1] if driver else None,
    }


def container(environ: Mapping[str, str], file: Path = _CONTAINER_FILE) -> dict[str, Any] | None:
    """Return which image this container was made from; None: nothing says so. file: podman's."""
    named = next((environ[name] for name in IMAGE_VARIABLES if environ.get(name)), None)
    if named is not None:
        image, _, digest = named.partition("@")
        return {"image": image, "digest": digest or None}
    said = dict(_OF_PODMAN.findall(_text(file)))
    return {"image": said.get("image"), "digest": said.get("imageid")} if said else None


def _text(file: Path) -> str:
    """Return a file's text; nothing where it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""

"""What this machine, or container, gives to the processes of a run."""

from __future__ import annotations

import os
import platform
import resource
import sys
import tempfile
from pathlib import Path

from elastic.doctor.finding import Finding, Verdict, of_error
from elastic.errors import ConfigError
from elastic.events import words
from elastic.membership import environment, launchers
from elastic.version import __version__
from elastic_checkpoint.memory import free_bytes, group_limits

_SHARED = Path("/dev/shm")
_SHARED_LEAST, _SHARED_GOOD = 2**24, 2**30
_MEMORY_LEAST = 2**30  # an agent, a worker and the process that writes have 0.3 GB each when they have loaded torch
_FILES_LEAST = 1024  # Linux's own limit, with which runs are tested
_GPU_OF_NVIDIA = Path("/dev/nvidiactl")


def python() -> Finding:
    return Finding(
        "python", Verdict.OK, f"{platform.python_version()}, {sys.executable}, with elastic-exact {__version__}"
    )


def torch() -> Finding:
    """Find out whether torch can be loaded, is a release that runs take, and has gloo."""
    try:
        import torch
        import torch.distributed as dist

        from elastic.state.torch_release import check_torch

        check_torch()
    except ConfigError as wrong:
        return of_error("torch", wrong)
    except (ImportError, OSError) as failure:  # the latter: a library that it was built with is not here
        return of_error("torch", failure, "install it anew: pip install --force-reinstall 'torch>=2.11,<3'")
    if not (dist.is_available() and dist.is_gloo_available()):
        return Finding(
            "torch", Verdict.WRONG, f"{torch.__version__}, built without gloo", "install a build that has it"
        )
    nccl = "gloo and NCCL" if dist.is_nccl_available() else "gloo"
    return Finding("torch", Verdict.OK, f"{torch.__version__}, with {nccl}")


def devices() -> Finding:
    """Find out whether torch computes on the GPUs that are here."""
    import torch

    processors = len(os.sched_getaffinity(0))
    has = f"{processors} processor{'s' * (processors != 1)}"
    kind = torch.version.cuda or torch.version.hip
    if kind is None:
        if _GPU_OF_NVIDIA.exists():
            return Finding(
                "devices",
                Verdict.WRONG,
                f"{has}; an NVIDIA GPU, and torch {torch.__version__} is a build for processors alone",
                "install a build of torch for CUDA, as pytorch.org says for this machine",
            )
        return Finding("devices", Verdict.OK, f"{has}, no GPU; torch is a build for processors alone")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if not names:
        visible = environment.beginning_with(["CUDA_VISIBLE_DEVICES"])
        said = "".join(f", with {name}={value!r}" for name, value in visible.items())
        found = f"{has}; torch, built for {kind}, sees no GPU{said}"
        if not (_GPU_OF_NVIDIA.exists() or visible):
            return Finding("devices", Verdict.OK, found)
        advice = "see what nvidia-smi says: a driver older than torch's CUDA, or a container that was given no GPU"
        return Finding("devices", Verdict.WRONG, found, advice)
    for index in range(len(names)):
        try:
            torch.ones(1, device=f"cuda:{index}").add(1).item()
        except RuntimeError as failure:
            why, advice = str(failure).splitlines()[0], "see what nvidia-smi says: another process may hold it"
            return Finding("devices", Verdict.WRONG, f"GPU {index} ({names[index]}) computes nothing: {why}", advice)
    return Finding("devices", Verdict.OK, f"{has}; {len(names)} GPU{'s' * (len(names) != 1)}: {', '.join(names)}")


def memory() -> Finding:
    """Find out whether there is memory for an agent and a worker."""
    limits = group_limits()
    of_group = f"; its control group may have {words.size(min(one.most for one in limits))}" if limits else ""
    free = free_bytes()
    found = f"{words.size(free)} can be had{of_group}"
    if free >= _MEMORY_LEAST:
        return Finding("memory", Verdict.OK, found)
    advice = "give the container more (--memory, resources.limits.memory), or end what else is here"
    return Finding("memory", Verdict.WRONG, f"{found}: too little for an agent and a worker", advice)


def shared_memory() -> Finding:
    """Find out whether /dev/shm has room, where processes of a loader hand over batches."""
    # Saves do not need it: their memory has no name.
    name, more = str(_SHARED), "a container gets more by --shm-size=8g, a pod by an emptyDir of medium Memory there"
    try:
        with tempfile.TemporaryFile(dir=_SHARED) as file:
            os.posix_fallocate(file.fileno(), 0, _SHARED_LEAST)
    except OSError as refused:
        found = f"a loader process could not put a batch of {words.size(_SHARED_LEAST)} there: {refused.strerror}"
        return Finding(name, Verdict.WRONG, found, f"remove what is left there (ls -l {name}), or enlarge it: {more}")
    room = os.statvfs(_SHARED)
    free = room.f_bavail * room.f_frsize
    if free < _SHARED_GOOD:
        found = f"{words.size(free)} free, for the batches of all loader processes"
        return Finding(name, Verdict.NOTE, found, f"where batches are large, enlarge it: {more}")
    return Finding(name, Verdict.OK, f"{words.size(free)} free")


def open_files() -> Finding:
    """Find out whether a process may open as many files as a run was tested with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} a process" if soft == hard else f"{soft:,} a process, which it may raise to {hard:,}"
    if soft >= _FILES_LEAST:
        return Finding("open files", Verdict.OK, found)
    advice = "ulimit -n 65536 in the shell, LimitNOFILE= in a unit, --ulimit nofile= of a container"
    return Finding("open files", Verdict.WRONG, f"{found}, below Linux's own {_FILES_LEAST:,}", advice)


def launcher(url: str | None) -> Finding:
    """Find the launcher as `elastic run` would, started where this command was. url: of the run, if it is known."""
    try:
        ranks = environment.read()
    except ConfigError as wrong:
        return of_error("launcher", wrong)
    speaking = next((one for one in launchers.LAUNCHERS if one.name == ranks.launcher), None)
    if speaking is None:
        found = environment.beginning_with(["PET_"])
        if not found:
            return Finding("launcher", Verdict.OK, "none: this process was started by itself")
        return Finding("launcher", Verdict.OK, f"none, and torchrun's defaults, which elastic run takes: {_set(found)}")
    found = environment.beginning_with(speaking.variables)
    own = {name: value for name, value in found.items() if name in speaking.variables}
    said = f"{speaking.name}: rank {ranks.rank} of {ranks.world_size}; {_set(own)}"
    of_torchrun = speaking.name == launchers.Torchrun.name
    if ranks.world_size > 1 and not (of_torchrun or url):
        return Finding(
            "launcher",
            Verdict.WRONG,
            f"{said}; nothing says where these {ranks.world_size} meet",
            "set ELASTIC_URL to the run's URL, in storage that all of them reach",
        )
    return Finding("launcher", Verdict.OK, said)


def _set(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(variables.items()))

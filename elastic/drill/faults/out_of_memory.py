"""No more memory for a worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic.drill.faults.base import Flag, Scene, WorkerFault

_SPARE_BYTES = 256 << 20  # what may still be had under the limit, for whoever clears up


@dataclass(frozen=True)
class OutOfMemory(WorkerFault):
    """The worker that has this rank at that moment gets no more memory: a real limit of the kernel's (RLIMIT_AS), and a
    tensor that does not fit."""

    kind = "oom"
    short = "w{worker} out of memory"
    sentence = "no more memory for worker {worker}"
    flags = (Flag("oom", "no more memory, by a limit of the kernel's"),)
    in_script = True
    loses_workers = True
    fails = True

    def strike(self, scene: Scene) -> None:
        """Raises what torch raises for a tensor that the kernel has no memory for."""
        import resource

        import torch

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _SPARE_BYTES
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        try:
            torch.empty(2 * _SPARE_BYTES, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    @classmethod
    def raised(cls, name: str, error: str) -> bool:
        return name == "MemoryError" or "memory" in error

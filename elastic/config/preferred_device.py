"""Where this process's framework computes, for a Run that is not told, and whose model still lies in main memory.

Accelerate and Fabric move models by themselves, when the run has looked already where they lie.
"""

from __future__ import annotations

import torch

_preferred: torch.device | None = None


def prefer(device: torch.device) -> None:
    """Note where this process's framework computes; the last one counts."""
    global _preferred
    _preferred = device


def preferred() -> torch.device | None:
    return _preferred

"""Tells when a backward pass is over, whoever called it.

Autograd has no public hook for that. What DistributedDataParallel and FSDP use is a callback that the engine runs as a
pass's last act, before `backward` returns (checked with torch 2.13; tests/pure/test_backward_end.py notices a change).
It must be asked for within the pass: from a gradient's hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_engine: Any = torch.autograd.Variable._execution_engine


def at_end_of_pass(function: Callable[[], None]) -> None:
    """Have `function` called once the present backward pass has all its gradients. `backward` raises what it raises."""
    _engine.queue_callback(function)

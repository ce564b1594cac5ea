"""A worker does not outlive the agent that started it.

When torchrun is killed outright (SIGKILL, out of memory), nobody tells its workers: they would train on, or
wait for peers, with nobody to restart them, and the run's storage would stay claimed. Linux can send them a
signal instead. It is SIGTERM: while a worker starts, that ends it; in the loop it is a notice, the step is
finished, the state saved, and all leave.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def leave_with_parent() -> Callable[[], None]:
    """Asks the kernel (Linux) for SIGTERM when the parent dies. Returns what takes the request back."""
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)

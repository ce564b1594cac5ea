"""Pins the instruction set of ATen, oneDNN and MKL, so that machines with and without AVX-512 give the same bits.

The libraries read their variables once, when they are loaded, which was before anyone could ask: so the
process starts itself again in place, with the same arguments, same id and the variables set.
"""

from __future__ import annotations

import os
import sys

import torch

from elastic.errors import ConfigError
from elastic.membership.environment import (
    PORTABLE_INSTRUCTION_SETS,
    descriptors_of_agent,
    missing_portable_settings,
    with_portable_settings,
)


def pin_instruction_set() -> None:
    """Return in a process that is pinned; otherwise replace this one by one that is, or raise ConfigError."""
    by_hand = " ".join(f"{name}={value}" for name, value in PORTABLE_INSTRUCTION_SETS.items())
    if not missing_portable_settings():
        capability = torch.backends.cpu.get_cpu_capability()
        if capability != "AVX2":
            raise ConfigError(
                f"compute=Compute(portable=True) pins AVX2, and this machine gives {capability}; leave it out on it"
            )
        return
    if not sys.argv[0] or not os.path.exists(sys.argv[0]):
        raise ConfigError(
            "compute=Compute(portable=True) must start the process again and finds no script to start; "
            f"set {by_hand} yourself"
        )
    for descriptor in descriptors_of_agent():
        os.set_inheritable(descriptor, True)  # the process that takes this one's place talks to the agent by them
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], with_portable_settings())

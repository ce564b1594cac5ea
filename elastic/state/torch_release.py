"""Which releases of torch are these runs for? pyproject.toml says so, and an installation can pass that by.

Before 2.11 torch does not say what processor it computes on (`torch.cpu.get_capabilities`), and so not which machines
give the same bits.
"""

from __future__ import annotations

import re

import torch

from elastic.errors import ConfigError

OLDEST = (2, 11)


def check_torch(version: str = torch.__version__) -> None:
    """Raise ConfigError for a torch that is too old. A build before a release (2.11.0a0) counts as the release."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and tuple(map(int, found.groups())) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"torch {version} is installed, and elastic needs {oldest} or later\n"
            f"  state nothing was started or written\n  next  pip install 'torch>={oldest}'"
        )

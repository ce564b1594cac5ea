"""Which elastic-training is this? Processes of one run have the same: what they say to each other is no promise between
versions, nor is how they add. What a run has saved is read by later ones (checkpoint/format/manifest.py)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release() -> str | None:
    """As it is installed; None: it is not, and lies on the path."""
    try:
        return version("elastic-training")
    except PackageNotFoundError:
        return None

"""Functions, in milliseconds; of what takes seconds `make quick` runs a sample."""

from __future__ import annotations

from tests.kit.no_process import no_process_is_started

__all__ = ["no_process_is_started"]

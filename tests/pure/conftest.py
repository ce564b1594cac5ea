"""Functions, in milliseconds; `make quick` runs all of them."""

from __future__ import annotations

from tests.kit.no_process import no_process_is_started

__all__ = ["no_process_is_started"]

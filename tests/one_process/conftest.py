"""Whole runs of one worker, in the test's own process."""

from __future__ import annotations

from tests.kit.no_process import no_process_is_started

__all__ = ["no_process_is_started"]

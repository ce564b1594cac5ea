"""The handle of a save that training does not wait for."""

from __future__ import annotations

import threading
import time

from checkpoint.errors import CheckpointError
from checkpoint.format.manifest import Commit


class Saving:
    """A save that is under way, or was.

    Attributes:
        ended_s: When it was committed, failed or was dropped, on the clock time.monotonic().
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._ended = threading.Event()
        self._commit: Commit | None = None
        self._error: CheckpointError | None = None
        self.ended_s: float | None = None

    @property
    def done(self) -> bool:
        """Whether it is committed, failed or was dropped."""
        return self._ended.is_set()

    @property
    def error(self) -> CheckpointError | None:
        """Why nothing was committed; None while it is under way, and after a commit."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> Commit:
        """The commit, as soon as it is durable.

        Args:
            timeout_s: How long to wait, in seconds; None: the save's own deadline ends this.

        Raises:
            StorageError: The storage failed.
            ClaimLost: A newer claim was taken.
            SaveDropped: Another save took its place, or the job has gone on under another claim.
            CheckpointError: What else failed.
            TimeoutError: After `timeout_s`; the save goes on.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"the save of step {self.step} is still under way after {timeout_s:g} s, and goes on")
        if self._error is not None:
            raise self._error
        assert self._commit is not None
        return self._commit

    def succeed(self, commit: Commit) -> None:
        self._commit = commit
        self.ended_s = time.monotonic()
        self._ended.set()

    def fail(self, error: CheckpointError) -> None:
        self._error = error
        self.ended_s = time.monotonic()
        self._ended.set()

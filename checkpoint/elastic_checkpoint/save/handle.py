"""The handle of a save that training does not wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.manifest import Commit


class Saving:
    """A save that is under way, or was.

    Attributes:
        ended_s: When it was committed, failed or was dropped, on the clock time.monotonic().
        staged_s: When what was promised to be steady was copied, likewise; None where nothing was promised.
        joined_s: How long callers of `staged` have waited for the copy, in seconds.
        beside_s: How long the copy of what is steady took, whoever made it: of a processor, and not of training.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._stage: Callable[[bool], bool] | None = None
        self.joined_s = self.beside_s = 0.0
        self._ended = threading.Event()
        self._commit: Commit | None = None
        self._error: CheckpointError | None = None
        self.ended_s: float | None = None
        self.staged_s: float | None = None
        self._stored: tuple[float, float, int, int] | None = None

    @property
    def likely_left_s(self) -> float | None:
        """Return how many seconds it takes yet to be stored, if it goes on as by now; None: nobody knows yet."""
        if self._stored is None or self.done:
            return None
        since_s, at_s, stored, of = self._stored
        if not stored:
            return None
        now_s, rest = time.monotonic(), (of - stored) / stored
        left_s = (at_s - since_s) * rest - (now_s - at_s)
        return left_s if left_s > 0 else (now_s - since_s) * rest  # it has become slower

    def has_stored(self, stored: int, *, of: int) -> None:
        """Note how many bytes are stored by now; 0 as it begins."""
        now_s = time.monotonic()
        self._stored = (self._stored[0] if self._stored is not None else now_s), now_s, stored, of

    @property
    def done(self) -> bool:
        """Return whether it is committed, failed or was dropped."""
        return self._ended.is_set()

    @property
    def error(self) -> CheckpointError | None:
        """Return why nothing was committed; None while it is under way, and after a commit."""
        return self._error

    def staged(self, *, wait: bool = True) -> bool:
        """Return whether the state is copied, so that what was promised to be steady may change.

        From then on the save is committed even if this process is killed. To be called by the thread that changes the
        tensors, before it does; what was written to before that is noticed here (`StateChanged`, raised by `wait`).

        Args:
            wait: False: only looks, and tells the process that writes if the copy is whole. True: makes what is left of
                it, which takes no longer than to copy everything at once would have.
        """
        if self._stage is None:
            return True
        begun_s = time.monotonic()
        if not self._stage(wait):
            return False
        self.staged_s = time.monotonic()
        self.joined_s += self.staged_s - begun_s
        self._stage = None
        return True

    def wait(self, timeout_s: float | None = None) -> Commit:
        """Return the commit, as soon as it is durable.

        Args:
            timeout_s: How long to wait, in seconds; None: the save's own deadline ends this.

        Raises:
            StorageError: The storage failed.
            ClaimLost: A newer claim was taken.
            SaveDropped: Another save took its place, or the job has gone on under another claim.
            StateChanged: What was promised to be steady was written to before it was copied.
            CheckpointError: What else failed.
            TimeoutError: After `timeout_s`; the save goes on.
        """
        self.staged()
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"the save of step {self.step} is still under way after {timeout_s:g} s, and goes on")
        if self._error is not None:
            raise self._error
        assert self._commit is not None
        return self._commit

    def stages(self, stage: Callable[[bool], bool]) -> None:
        """Have `staged` ask this, with its argument: it is being copied."""
        self._stage = stage

    def succeed(self, commit: Commit) -> None:
        self._commit = commit
        self.ended_s = time.monotonic()
        self._ended.set()

    def fail(self, error: CheckpointError) -> None:
        self._error = error
        self.ended_s = time.monotonic()
        self._ended.set()

"""What a logger can do: go on behind a step, and take rows of later ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

STEP = "step"  # what rows are numbered by, and no name of a value


class Logger(ABC):
    """Takes what a run logs: one for a `Run`, by its argument `loggers`. All calls come from one thread.

    Whatever a call raises is said once; the rows are kept, up to 10,000, and given again once `open` succeeds.
    """

    @abstractmethod
    def open(self, run: str, *, after: int) -> None:
        """Go on with the rows of a run, as of its first ones: what is there of steps behind `after` is dropped.

        It is called again where steps are done over, without a `close` before.

        Args:
            run: Names the run: the URL at which it lives, without what is confidential.
            after: The last step whose row stays; it may be none that is there.
        """

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take a row; of one step there may be several, with different names.

        Args:
            step: Counts the steps that are applied: 1 behind the first one.
            values: By name.
        """

    @abstractmethod
    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return those values of a step, at or before the one it was opened after, that are not there."""

    def flush(self) -> None:  # noqa: B027 - most have nothing to do here
        """See to it that what was written can be read. Called when no row waits, and once a second from then on."""

    @abstractmethod
    def close(self) -> None:
        """End; what was written stays."""

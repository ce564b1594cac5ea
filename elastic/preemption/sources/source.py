"""What every source of notices is: something that can be asked, again and again, which notices are in force now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from elastic.preemption.notice import Notice


class SourceFailed(Exception):
    """It could not be asked, or what it says makes no sense: why, and what to do, in words. It is asked again."""


class Source(ABC):
    """
    name     as in the setting
    every_s  between two looks, in seconds; asked after each look
    """

    name: str
    every_s: float

    @abstractmethod
    def look(self) -> Sequence[Notice]:
        """The notices that are in force now; the same one each time as long as it is. May wait for some seconds.

        Raises SourceFailed.
        """

    def gone(self, ids: Collection[str]) -> None:  # noqa: B027  # most have nobody to tell
        """This node has left on these notices: whoever waits for that may be told. Raises SourceFailed."""

    def abort(self) -> None:  # noqa: B027  # most are never long in a look
        """Nobody asks any more: a look that is under way, in another thread, ends soon."""

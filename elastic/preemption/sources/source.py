"""What every source of notices is: something that can be asked, again and again, which notices are in force now.

One that asks several questions tells what the answers say, whatever became of the other questions (`ask_each`): a
notice that was heard is worth more than the fault of what was to be asked next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from elastic.preemption.firmware import Firmware
from elastic.preemption.notice import Notice


class SourceFailed(Exception):
    """It could not be asked, or what it says makes no sense: why, and what to do, in words. It is asked again."""


class PartlyFailed(SourceFailed):
    """Some of what was asked failed, see above. heard: the notices that the rest says are in force."""

    def __init__(self, why: str, heard: Sequence[Notice]) -> None:
        super().__init__(why)
        self.heard = heard


class Source(ABC):
    """Whoever may say that this node is taken, asked again and again.

    name       as in the setting
    needs      what must stand behind it there, after a colon, as the help names it; "": nothing
    variables  how the names of the environment's variables begin that it reads; it is given no others
    found      where auto looks for it, in words; None: nowhere
    every_s    between two looks, in seconds; asked after each look
    """

    name: str
    needs: str = ""
    variables: tuple[str, ...] = ()
    found: str | None = None
    every_s: float

    @classmethod
    @abstractmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Source:
        """Make the source that the setting asks for by `name` or `name:rest`. Raises ConfigError."""

    @classmethod
    def is_here(cls, machine: Firmware, environ: Mapping[str, str]) -> bool:
        """Tell whether auto takes it, on this machine and in this job."""
        return False

    @abstractmethod
    def look(self) -> Sequence[Notice]:
        """Return the notices in force now; the same one each time as long as it is. May wait for some seconds.

        Raises SourceFailed; PartlyFailed where some of its questions were answered.
        """

    def gone(self, ids: Collection[str]) -> None:  # noqa: B027  # most have nobody to tell
        """Note that this node has left on these notices: whoever waits for that may be told. Raises SourceFailed."""

    def abort(self) -> None:  # noqa: B027  # most are never long in a look
        """End a look that is under way, in another thread, soon: nobody asks any more."""


def ask_each(questions: Iterable[Callable[[], Iterable[Notice]]]) -> list[Notice]:
    """Return what all of them say. Raises SourceFailed where none is answered, PartlyFailed where some are not."""
    heard: list[Notice] = []
    failures: list[Exception] = []
    answered = False
    for question in questions:
        try:
            heard += question()
            answered = True
        except Exception as failed:  # SourceFailed; or what nobody foresaw that a service may say
            failures.append(failed)
    if not failures:
        return heard
    if not answered:
        raise failures[0]
    raise PartlyFailed(in_words(failures[0]), heard) from failures[0]


def in_words(failed: Exception) -> str:
    return str(failed) if isinstance(failed, SourceFailed) else f"{type(failed).__name__}: {failed}"

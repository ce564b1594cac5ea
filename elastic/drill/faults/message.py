"""A message that is lost, that comes twice, or that another one overtakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Aftermath, Flag, Scene, WorkerFault
from elastic.errors import ConfigError

_HOW = {"drop": "is lost", "duplicate": "is sent twice", "reorder": "is sent after the one that follows it"}


@dataclass(frozen=True)
class Message(WorkerFault):
    """What the worker that has this rank at that moment next says to its agent, and so to the run's hub, is not sent,
    sent twice, or sent after the word that follows it. It says nothing while it trains: what is hit is where it stands
    as its view ends, what it puts on the board of the next one (at "form": where that is lost, the view waits for the
    run's timeout_s), or that it has finished.

    how  "drop", "duplicate" or "reorder"
    """

    how: str

    kind = "message"
    flags = (
        Flag("drop-message", "what a worker next says to its agent is lost: a fault that ends its view makes it speak",
             {"how": "drop"}),
        Flag("duplicate-message", "likewise: it is sent twice", {"how": "duplicate"}),
        Flag("reorder-messages", "likewise: it is sent after the next one", {"how": "reorder"}),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in _HOW:
            raise ConfigError(f"Message: how={self.how!r}; it is {', '.join(_HOW)}")

    def __str__(self) -> str:
        return f"{self.when}: {self.how} a message of w{self.worker}"

    def in_words(self) -> str:
        return f"what worker {self.worker} says next to its agent {_HOW[self.how]}"

    def possible(self, scene: Scene) -> bool:
        """One whose first word is lost is, for all others, a machine that is slow to start."""
        return scene.run.generation > 0

    def strike(self, scene: Scene) -> None:
        """What only people are shown goes by untouched."""
        from elastic.membership.messages.messages import Figures, RunStatus
        from elastic.membership.worker import live

        line_of, change = live.line_of, _changes(self.how)

        def changed(said: Any) -> bytes:
            line = line_of(said)
            if isinstance(said, (RunStatus, Figures)):
                return line
            sent = change(line)
            if sent is None:
                live.line_of = line_of
            return line if sent is None else sent

        live.line_of = changed

    def aftermath(self) -> Aftermath:
        return Aftermath.PERHAPS_LOSS

    def lost(self) -> int:
        return 1


def _changes(how: str) -> Callable[[bytes], bytes | None]:
    """What becomes of one line after the other; None: that is all."""
    said: list[bytes] = []

    def sent(line: bytes) -> bytes | None:
        said.append(line)
        if len(said) == 1:
            return {"drop": b"", "duplicate": line + line, "reorder": b""}[how]
        if len(said) == 2 and how == "reorder":
            return line + said[0]
        return None

    return sent

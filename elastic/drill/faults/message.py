"""A message that is lost, that comes twice, or that another one overtakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Aftermath, Flag, WorkerFault
from elastic.drill.faults.scene import Scene


@dataclass(frozen=True)
class Message(WorkerFault):
    """The next message of the worker that has this rank at that moment is lost, sent twice, or overtaken by another.

    It goes to the worker's agent, and so to the run's hub. A worker says nothing while it trains: what is hit is where
    it stands as its view ends, what it puts on the board of the next one (at "form": where that is lost, the view waits
    for the run's timeout_s), or that it has finished.

    how  "drop", "duplicate" or "reorder"
    """

    how: str

    kind = "message"
    sentence = "what worker {worker} says next to its agent {said}"
    flags = (
        Flag("drop-message", "what a worker next says to its agent is lost: a fault that ends its view makes it speak",
             {"how": "drop"}, "is lost"),
        Flag("duplicate-message", "likewise: it is sent twice", {"how": "duplicate"}, "is sent twice"),
        Flag("reorder-messages", "likewise: it is sent after the next one", {"how": "reorder"},
             "is sent after the one that follows it"),
    )  # fmt: skip
    takes = "workers"
    outcome = Aftermath.PERHAPS_LOSS

    def possible(self, scene: Scene) -> bool:
        """Return whether the worker has been in a view, and so has spoken to its agent."""
        return scene.run.generation > 0  # one whose first message is lost is, for all others, slow to start

    def strike(self, scene: Scene) -> None:
        """Lose, repeat or hold back what the worker says next, but for what only people are shown."""
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


def _changes(how: str) -> Callable[[bytes], bytes | None]:
    """Return a function that says what is sent for one line after the other; None: that is all, send the line."""
    said: list[bytes] = []

    def sent(line: bytes) -> bytes | None:
        said.append(line)
        if len(said) == 1:
            return line + line if how == "duplicate" else b""
        if len(said) == 2 and how == "reorder":
            return line + said[0]
        return None

    return sent

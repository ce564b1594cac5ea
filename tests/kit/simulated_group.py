"""A view's connections without a network. Collectives know who has given what, so that workers which disagree on what
comes next are caught, not left waiting.
"""

from __future__ import annotations

from typing import Any


class Lost(Exception):
    """elastic.errors.PeerLost"""


class Group:
    """A view's connections. A collective gives everyone's values, or fails once somebody has hung up."""

    def __init__(self, members: list[str]) -> None:
        self.members = members
        self.hung_up: set[str] = set()
        self.rounds: list[tuple[str, dict[str, Any]]] = []
        self.stands: dict[str, object] = {}  # once it has formed
        self.votes: dict[tuple[int, object], bool] = {}  # of a collective and a replica: whether it has come through

    def give(self, at: int, name: str, worker: str, value: Any) -> dict[str, Any]:
        if at == len(self.rounds):
            self.rounds.append((name, {}))
        assert self.rounds[at][0] == name, f"{worker} is in {name!r} and others are in {self.rounds[at][0]!r}"
        self.rounds[at][1][worker] = value
        return self.rounds[at][1]

"""Which nodes are with the hub, where they listen, and whose workers are on their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from elastic.membership.messages.messages import HubIs
from elastic.membership.rules.kills import Slot

Listening = tuple[str, str, int]  # a node, and the address and port where its agent listens


class Nodes:
    """The nodes that are with the hub, in the order in which they came.

    most     how many a run has at once
    changed  since the hub last told the nodes of each other
    refused  who waits for a place
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.changed = False
        self.refused: set[str] = set()
        self._met: dict[str, Listening] = {}  # before there was a hub, and where they listen
        self._have_come: set[str] = set()  # or are lost
        self._here: dict[str, None] = {}
        self._where: dict[str, tuple[str, int]] = {}  # nodes that listen
        self._awaited = Counter[Slot]()  # slots whose worker was ordered and has not been started yet

    def __contains__(self, node: object) -> bool:
        return node in self._here

    def __iter__(self) -> Iterator[str]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)

    def newest_first(self) -> Sequence[str]:
        """Return the nodes, newest first. The hub's own, which came first, comes last."""
        return list(reversed(self._here))

    def have_met(self, nodes: Iterable[Sequence[Any]]) -> None:
        """Note who met before there was a hub; nodes: of each [name, address, port]."""
        self._met = {name: (name, address, port) for name, address, port in nodes}

    @property
    def to_come(self) -> bool:
        """Return whether some of those who have met have not been here yet."""
        return not self._have_come.issuperset(self._met)

    def is_lost(self, node: str) -> None:
        """Wait no more for a lost node, and take it off those who wait for a place."""
        self.refused.discard(node)
        self._have_come.add(node)

    def has_room(self, node: str, to_come: Iterable[str]) -> bool:
        """Return whether there is room for a node; to_come: those whose places newcomers do not take."""
        return len({*self._here, *to_come} - {node}) < self.most

    def comes(self, node: str, address: str | None, port: int | None) -> None:
        """Add a node that is let in, and where it listens, if it does."""
        self.refused.discard(node)
        self._have_come.add(node)
        self._here[node] = None
        if address is not None and port is not None:
            self._where[node] = address, port

    def goes(self, node: str) -> bool:
        """Drop a node, and return whether workers of it were on their way."""
        del self._here[node]
        awaited = [slot for slot in self._awaited if slot[0] == node]
        for slot in awaited:
            del self._awaited[slot]
        return bool(awaited)

    def listening(self) -> list[Listening]:
        """Return the name, address and port of each node that listens."""
        return [(node, *self._where[node]) for node in self._here if node in self._where]

    def roster(self, *, begun: bool) -> list[Listening]:
        """Return those who listen; before the first view also those who have met and are yet to come.

        begun  whether there was a view
        """
        gone = self._have_come.difference(self._here)
        # before the first view each of those who have met knows all of them
        met = [] if begun else [one for name, one in self._met.items() if name not in gone]
        return [*met, *(one for one in self.listening() if one not in met)]

    def next_hub(self) -> HubIs:
        """Return where the oldest node that listens does; no address if none: the hub is to be looked for."""
        listening = self.listening()
        return HubIs(address=listening[0][1], port=listening[0][2]) if listening else HubIs()

    # slots

    def awaits(self, slot: Slot) -> None:
        """Note that a worker was ordered for this slot."""
        self._awaited[slot] += 1

    def has_answered(self, slot: Slot) -> None:
        """Note that a slot's worker is there, or will not be."""
        if self._awaited[slot] > 1:
            self._awaited[slot] -= 1
        else:
            del self._awaited[slot]

    @property
    def awaits_workers(self) -> bool:
        """Return whether workers were ordered that have not been started yet."""
        return bool(self._awaited)

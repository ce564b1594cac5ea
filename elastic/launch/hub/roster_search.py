"""Where is the run's hub? The nodes that one knows of are asked, one after the other, until one of them is it.

Who is asked in which order, and whose turn it is to serve, is rules.py's to say. A newcomer also asks those who
know of the run (written_lookup.py), for all whom it knows may be gone while the run goes on with others.

How a node calls another one, and how long ago that was, are given to it: simulated agents seek as real ones do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from elastic.launch.hub import rules
from elastic.launch.hub.rules import Candidate, Turn
from elastic_checkpoint.net.dialing import Address

_MET_MAX = 1024
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)  # a connection
Reached = Callable[[str | None, Address | None, C], None]


class Dialling(Protocol[C_co]):
    """How a node calls others; dialing.Dials is one."""

    def begin(self, to: Address, done: Callable[[C_co | None, bool], None]) -> None: ...

    def close(self) -> None: ...


class Searching(Protocol[C_co]):
    """A search for the hub by what is written of it; written_lookup.BackgroundLookup is one."""

    def take(self) -> C_co | None: ...

    def end(self) -> None: ...


class RosterSearch(Generic[C]):
    """One node's search for the hub among the nodes that it knows of.

    newcomer  this node is not in the run yet, or not any more
    roster    the nodes of the run, in the order in which they become the hub
    met       all nodes that a roster ever named
    lost      nodes that are no candidates, and whether they said that they go
    """

    def __init__(
        self,
        node: str,
        own: Address,
        search: Callable[[], Searching[C]] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        within_s: float | None = None,
    ) -> None:
        """Take what the search goes by.

        own       where others find this agent
        search    begins to ask those who know of the run; None: there is nobody to ask
        within_s  a hub is to be found; None: rules.SEEK_S
        """
        self._node = node
        self._own = own
        self._new_search = search
        self._clock = clock
        self._within_s = within_s
        self.newcomer = True
        self.roster: list[tuple[str, Address]] = []
        self.met: dict[str, Address] = {}
        self.lost: dict[str, bool] = {}
        self._to_ask: list[Candidate] | None = None  # yet
        self._since_s: float | None = None
        self._refusing: set[Address] = set()  # of those who were asked
        self._refused_since_s = math.inf  # by all who are known
        self._next_s = 0.0
        self._search: Searching[C] | None = None

    def open(
        self,
        dials: Dialling[C],
        *,
        reached: Reached[C],
        serve: Callable[[], None],
        in_vain: Callable[[str], None],
    ) -> None:
        """Take what is called with the outcome.

        reached  somebody who may be the hub, or know where it is: its name and address, as far as they are known, and a
                 connection
        serve    it is this node's turn to be the hub
        in_vain  why nobody is asked any more
        """
        self._dials, self._reached, self._serve, self._in_vain = dials, reached, serve, in_vain

    def close(self) -> None:
        self._end_search()
        self._dials.close()

    # what is known

    def have_met(self, nodes: Sequence[tuple[str, Address]]) -> None:
        """Take the nodes, this one among them, that met before there was a hub, which the first of them is."""
        self.newcomer, self.roster, self.met = False, list(nodes), dict(nodes)

    def welcomed(self, roster: list[tuple[str, Address]]) -> None:
        """End the search, as the hub is found, and this node is in the run."""
        self.newcomer, self._to_ask, self._since_s = False, None, None
        self._end_search()
        self.roster, self.lost = roster, {}
        self.met = dict([*self.met.items(), *roster][-_MET_MAX:])

    def is_full(self, nodes: Iterable[tuple[str, Address]]) -> None:
        """Count this node as a newcomer: the hub is found, and has no place for it."""
        self.newcomer, self._to_ask, self._since_s = True, None, None
        self.met |= dict(nodes)

    def is_none(self, address: Address) -> None:
        """Forget an address at which nobody of this run is."""
        self.roster = [(name, at) for name, at in self.roster if at != address]
        self.met = {name: at for name, at in self.met.items() if at != address}

    def candidates(self) -> list[Candidate]:
        """Return whom to ask, in order."""
        return rules.candidates(self.roster, self.met, self.lost)

    # seeking

    def begin(self, *, pause: bool = False) -> None:
        """Begin to ask, or go on, at once or after a pause."""
        now_s = self._clock()
        if self._since_s is None:
            self._since_s, self._refused_since_s = now_s, math.inf
        if self._to_ask is None:
            self._to_ask = self.candidates()
        if self.newcomer and self._search is None and self._new_search is not None:
            self._search = self._new_search()  # whom it knows may all be gone, and the run goes on with others
        self._next_s = now_s + (rules.PAUSE_S if pause else 0.0)
        if not pause:
            self._ask_next(now_s, self._to_ask)

    def begin_at(self, address: Address, then: Sequence[Candidate] = ()) -> None:
        """Ask first at an address that somebody has named, then the others; `then` if nobody was to be asked yet."""
        self._to_ask = [(None, address), *(self._to_ask or then)]
        self.begin()

    def stop(self) -> None:
        """Ask nobody: the hub is here, or this node is with one who may be it."""
        self._to_ask = None

    def tick(self, now_s: float) -> None:
        """Ask the next candidate when it is time; does nothing while this node is with somebody."""
        if self._to_ask is not None and now_s >= self._next_s:
            self._ask_next(now_s, self._to_ask)

    def look(self) -> None:
        """Take the connection that those who know of the run have found."""
        if self._search is not None and (found := self._search.take()) is not None:
            self._end_search()
            self.found(found)

    def found(self, connection: C) -> None:
        """Go on with a connection to what somebody says is the hub."""
        self._dials.close()
        self.stop()
        self._reached(None, None, connection)

    def _ask_next(self, now_s: float, to_ask: list[Candidate]) -> None:
        """Ask the next candidate, serve if it is this node, or begin a new round; give up after `within_s`."""
        self._dials.close()
        why = rules.in_vain(
            seeks_s=now_s - (now_s if self._since_s is None else self._since_s),
            within_s=rules.SEEK_S if self._within_s is None else self._within_s,
            refused_s=now_s - self._refused_since_s,
            newcomer=self.newcomer,
        )
        if why is not None:
            self.stop()
            self._end_search()
            self._in_vain(why)
        elif not to_ask:
            known = {at for name, at in rules.candidates(self.roster, self.met, ()) if name != self._node}
            is_alone = known and known <= self._refusing
            self._refused_since_s = min(self._refused_since_s, now_s) if is_alone else math.inf
            self.lost = {}  # they may be back
            self._to_ask = self.candidates()
            self._next_s = now_s + rules.PAUSE_S
        else:
            name, address = candidate = to_ask.pop(0)
            match rules.turn(candidate, node=self._node, own=self._own, newcomer=self.newcomer):
                case Turn.ASK:
                    self._ask(name, address, now_s)
                case Turn.SERVE:
                    self._serve()

    def _ask(self, name: str | None, address: Address, now_s: float) -> None:
        self._next_s = now_s + rules.TRY_S
        self._refusing.discard(address)

        def done(connection: C | None, refused: bool) -> None:
            if refused:
                self._refusing.add(address)
            if connection is not None:
                self._reached(name, address, connection)  # where it is not the hub, the others are asked
                return
            if name is not None:
                self.lost.setdefault(name, False)
            self._next_s = 0.0

        self._dials.begin(address, done)

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.end()
            self._search = None

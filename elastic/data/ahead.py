"""Which request is next, which are read ahead for it, and whose is a result that arrives? Bookkeeping; nothing is read.

Promises  requests are delivered in the order of their sequence, whatever the order of results.
          A new sequence inherits what the old one has under way: a request for the same examples, in the same
          epochs and order, takes that result. What nobody asks for is dropped when its room is needed, and
          abandoned if it is not read yet.
          At most `most` results are kept ahead of the next one, and at most `most` requests are in flight.
Leaves    processes, waiting and errors to loader.py.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from elastic.data.data_plan import Examples


class Ahead:
    """Bookkeeping of the requests of one sequence after another; a ticket tells each submission from all others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tickets = itertools.count(1)
        self._source: Iterator[Examples] = iter(())
        self._broken_off = False
        self._due: deque[tuple[int, Examples]] = deque()  # drawn and not delivered, in order
        self._unsent: deque[tuple[int, Examples]] = deque()  # those of them that are still to be submitted
        self._flight: set[int] = set()  # submitted, the result is not here
        self._results: dict[int, Any] = {}  # here, not delivered
        self._spare: dict[int, bytes] = {}  # of an earlier sequence, and not asked for again so far: its examples
        self._abandoned: set[int] = set()  # those of them whose results may or may not come

    def redirect(self, requests: Iterable[Examples]) -> None:
        """Replace the sequence of requests; nothing is drawn from the new one yet."""
        self._broken_off = True  # what is torn in the middle delivers nothing
        for ticket, request in self._due:
            if ticket in self._flight or ticket in self._results:
                self._spare[ticket] = _examples(request)
        self._due.clear()
        self._unsent.clear()
        self._source = iter(requests)
        self._broken_off = False

    def abandon(self) -> set[int]:
        """Return the tickets whose reading should end, as the beginning of the sequence does not ask for them.

        For each comes `arrived`, if it was finished already, or `dropped`. Raises what drawing a request raises.
        """
        while self._draw_ahead():
            pass
        self._abandoned = self._spare.keys() & self._flight
        return self._abandoned

    def head(self) -> Examples | None:
        """Return the request that is delivered next, or None after the last. Raises what drawing it raises."""
        if not self._due and not self._draw() and self._broken_off:
            raise RuntimeError(
                "the sequence of requests broke off: drawing from it raised before\n"
                "  next   open the loader, or redirect it"
            )
        return self._due[0][1] if self._due else None

    def submissions(self) -> Iterator[tuple[int, Examples]]:
        """Yield tickets and requests that are to be read now. Raises what drawing a request raises."""
        while len(self._flight) < self._most and (self._unsent or self._draw_ahead()):
            if self._unsent:
                ticket, request = self._unsent.popleft()
                self._flight.add(ticket)
                yield ticket, request

    def arrived(self, ticket: int, result: Any) -> None:
        """Keep a result until it is taken; of those that nobody asks for so far, drop the latest beyond the room."""
        self._flight.discard(ticket)
        self._results[ticket] = result
        while len(self._results) > self._most + self.ready:
            # The latest is the one that its own sequence would have wanted last.
            latest = max(self._spare.keys() & self._results.keys())
            del self._spare[latest], self._results[latest]

    def dropped(self, ticket: int) -> None:
        """Forget an abandoned request whose reading has ended without a result."""
        self._flight.discard(ticket)
        del self._spare[ticket]

    @property
    def ready(self) -> bool:
        """Tell whether the result of `head` is here."""
        return bool(self._due) and self._due[0][0] in self._results

    def take(self) -> Any:
        """Remove and return the result of `head`, which is delivered with this."""
        result = self._results.pop(self._due[0][0])
        self._due.popleft()
        return result

    def lost(self) -> None:
        """Submit again what is due and not here, as nothing that is in flight will arrive."""
        self._flight.clear()
        self._spare = {ticket: examples for ticket, examples in self._spare.items() if ticket in self._results}
        self._unsent = deque(due for due in self._due if due[0] not in self._results)

    def outdated(self) -> None:
        """Submit again all that is due: whatever was read, or is being read, is of no use any more."""
        self._results.clear()
        self.lost()

    def _draw_ahead(self) -> bool:
        return len(self._due) < self._most + self.ready and self._draw()

    def _draw(self) -> bool:
        """Draw the next request, with the result that an earlier sequence has under way for it; False at the end."""
        if self._broken_off:
            return False
        self._broken_off = True  # a generator that raised says ever after that it has ended
        request = next(self._source, None)
        if request is not None:
            ticket = self._taken_over(request) if self._spare else None
            if ticket is None:
                ticket = next(self._tickets)
                self._unsent.append((ticket, request))
            self._due.append((ticket, request))
        self._broken_off = False
        return request is not None

    def _taken_over(self, request: Examples) -> int | None:
        """Return the ticket of an earlier sequence's request that reads the same, if its result is here or comes."""
        wanted = _examples(request)
        coming = (self._spare.keys() - self._abandoned) | (self._spare.keys() & self._results.keys())
        ticket = min((ticket for ticket in coming if self._spare[ticket] == wanted), default=None)
        if ticket is not None:
            del self._spare[ticket]
        return ticket


def _examples(request: Examples) -> bytes:
    """Return bytes that are equal for requests that read the same; both halves are as long as the request."""
    return request.visits.tobytes() + request.indices.tobytes()

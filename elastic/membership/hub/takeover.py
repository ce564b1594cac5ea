"""For whom a hub waits that takes over from another one, and for how long, before it decides anything.

It knows nothing but what the agents that come to it report. Those that it has heard of (from the roster, from a view)
are waited for, if they come soon; where nobody of any view comes, it begins anew with newcomers. Pure but for what it
remembers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_ALONE_S = 10.0  # a hub that took over, and to which nobody of any view has come by then, begins anew with newcomers
_BEGUN_S = 5.0  # the same where no view is known to anybody who has met
_COMES_S = 1.5  # a node of the last view has so long to come to a hub that has taken over


class Takeover:
    """The nodes for which a hub waits that takes over from another one.

    takes_over  from a hub that is gone, or goes; else nobody is waited for
    above  the newest generation that there was, as far as was reported
    before_any_view  who has met before there was a hub knows of none
    """

    def __init__(self, takes_over: bool) -> None:
        self.is_one = takes_over
        self.above = 0
        self.before_any_view = False
        self._since_s: float | None = None
        self._expected: set[str] = set()
        self._not_awaited: set[str] = set()
        self._come_by_s: float | None = None

    def expect(self, nodes: Iterable[str]) -> None:
        """Wait for these nodes, if they come soon."""
        self._expected = set(nodes)

    def begin(self, now_s: float) -> None:
        """Begin to wait, the first time that anything is decided."""
        if self._since_s is None:
            self._since_s = now_s

    def lost(self, node: str) -> None:
        """Wait for this node no more."""
        self._not_awaited.add(node)

    def came(self, node: str) -> None:
        """Note that this node is here, so that it may be waited for once more."""
        self._not_awaited.discard(node)

    def learned_of_view(self, now_s: float) -> None:
        """Wait a while for those nodes of a view, newer than what was known, that are not here."""
        self._come_by_s = now_s + _COMES_S

    def published(self) -> None:
        """Wait for no node of an earlier view: this hub has published one."""
        self._come_by_s = None

    def may_come(self, now_s: float, node: str) -> bool:
        """Return whether a node of the present view, which is not here, may come."""
        return node not in self._not_awaited and self._come_by_s is not None and now_s < self._come_by_s

    def to_come(self, now_s: float) -> set[str]:
        """Return the nodes whose places newcomers do not take."""
        fresh = self.is_one and self._since_s is not None and now_s - self._since_s < _COMES_S
        return self._expected - self._not_awaited if fresh or self._since_s is None else set()

    def waits(self, now_s: float, here: Collection[str], *, knows_a_view: bool) -> bool:
        """Return whether nothing is decided yet: expected nodes may come, or any that know a view."""
        if not self.is_one or self._since_s is None:
            return False
        since_s = now_s - self._since_s
        to_come = self._expected.difference(here, self._not_awaited)
        alone_s = _BEGUN_S if self.before_any_view else _ALONE_S
        return bool(to_come and since_s < _COMES_S) or (not knows_a_view and since_s < alone_s)

"""For how long has a host said nothing? A connection to one that is cut off or without power does not even end.

Whoever comes late to its own tick was stopped, and the hosts' words may lie unread: their leases begin anew. Not for
ever: a process that is late each time would notice no silent host at all. Pure: time comes in.
"""

from __future__ import annotations

LEASE_S = 3.0
EVICT_S = LEASE_S + 0.6  # what was lost is sent again later: a cut of nearly a lease is heard through
HELD_UP_S = 1.0  # a tick that comes so late says that this process was stopped
_EXCUSED_MAX = 2  # late ticks in a row, between which a host that is there would have been heard


class Lease:
    """The time since one host was heard."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._excused = 0

    def heard(self, now_s: float) -> None:
        """Begin the lease anew, as something of the host was heard."""
        self._since_s, self._excused = now_s, 0

    def held_up(self, now_s: float) -> None:
        """Begin it anew, as this process was held up until now; not many times in a row."""
        if self._excused < _EXCUSED_MAX:
            self._since_s, self._excused = now_s, self._excused + 1

    def silent_s(self, now_s: float) -> float:
        return now_s - self._since_s

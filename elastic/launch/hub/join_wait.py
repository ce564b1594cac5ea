"""How long a node waits for a place in a run that has its most nodes, and when it asks again. Pure: time comes in."""

from __future__ import annotations

PAUSE_S, PAUSE_MAX_S = 0.5, 4.0  # between two questions, at first and at last: each pause is twice the one before


class JoinWait:
    """One node's wait for a place, for `within_s` from its first refusal on."""

    def __init__(self, now_s: float, within_s: float) -> None:
        self.within_s = within_s
        self._until_s = now_s + within_s
        self._pause_s = PAUSE_S
        self._again_s = now_s + self._pause_s

    def is_over(self, now_s: float) -> bool:
        return now_s >= self._until_s

    def is_due(self, now_s: float) -> bool:
        """Return whether to ask now; the next question comes a pause later, as the answer may be long in coming."""
        if now_s < self._again_s:
            return False
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self._again_s = now_s + self._pause_s
        return True

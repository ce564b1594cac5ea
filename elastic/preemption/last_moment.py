"""A worker was told to leave by a time, and is in the middle of something long: when does it wait no more? Pure.

    told ............ breaks off ............ gives up .. by
                      the step in hand: what    what is not saved is lost,
                      it holds is saved         and that is put on record

Promises  until it breaks off, a boundary may still come, where leaving costs nothing.
          What it holds after that has twice the time of the last save. A notice that gives less is halved: one half for
          the boundary, the other for the save.
"""

from __future__ import annotations

from dataclasses import dataclass

RECORD_S = 2.0  # to put a loss on record, and to tell the others, before the machine is gone
_SAVES = 2.0  # times the last one
_SAVE_S, _SAVE_LEAST_S = 6.0, 3.0  # where nobody knows how long one takes; and where it takes next to nothing


@dataclass(frozen=True, kw_only=True)
class LastMoment:
    """By time.monotonic(). told_s: when the notice came   by_s: when the machine is gone"""

    told_s: float
    by_s: float

    def breaks_off_s(self, save_s: float | None) -> float:
        """save_s: how long a save takes until it is durable; None: nobody knows"""
        needs_s = _SAVE_S if save_s is None else max(_SAVE_LEAST_S, _SAVES * save_s)
        return max(self.gives_up_s - needs_s, self._half_s)

    @property
    def gives_up_s(self) -> float:
        return max(self.by_s - RECORD_S, (self._half_s + self.by_s) / 2)

    @property
    def _half_s(self) -> float:
        return (self.told_s + self.by_s) / 2

"""How long will a save take until it is durable? As long as the last one, after what is being written now.

And may that stay first, where a deadline is near? How long the last one took travels with what is saved: a coordinator
that goes on after another one, or after a restart, has made no save itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.events import words

_KEY = "save_s"  # in a commit's meta
_ANEW_S = 3.0  # for another writer process, on a busy machine


class SaveDuration:
    """How long saves take.

    seconds  of the last save, this worker's or another's; None: nobody knows
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._looked = False

    def measured(self, seconds: float) -> None:
        self.seconds = seconds

    def meta(self) -> dict[str, float]:
        """Return the last save's duration as a commit's meta has it."""
        return {} if self.seconds is None else {_KEY: self.seconds}

    def learn(self, meta: Mapping[str, Any]) -> None:
        """Learn the duration from a commit's meta, unless one was measured here meanwhile."""
        said = meta.get(_KEY)
        if self.seconds is None and isinstance(said, float):
            self.seconds = said

    def look_up(self, newest: Callable[[], Mapping[str, Any]]) -> None:
        """Learn the duration once, in the background; newest: reads the newest commit's meta, if it can."""
        if self.seconds is None and not self._looked:
            self._looked = True
            threading.Thread(target=lambda: self.learn(newest()), name="elastic-save-duration", daemon=True).start()


def likely_s(took_s: float | None, under_way_s: Sequence[float]) -> float | None:
    """Return how long it takes until a save that begins now is durable; None: nobody knows.

    took_s       by the last one
    under_way_s  how long ago those were begun that are not done, the oldest first: it is being written, and one that
                 waits behind it gives way to the new one
    """
    if took_s is None:
        return max(under_way_s, default=None)
    return took_s + sum(max(0.0, took_s - begun_s) for begun_s in under_way_s[:1])


@dataclass(frozen=True)
class UploadOrder:
    """Which goes first: an older save that is being uploaded, or the newest.

    newest_first  the older one is given up for it
    both          are likely to be done in time, the older one first; or nobody knows
    why           for people
    """

    newest_first: bool
    both: bool
    why: str


def older_left_s(as_it_goes_s: float | None, begun_s: float, took_s: float | None) -> float | None:
    """Return how long a save is likely to be uploaded yet; None: nobody knows.

    as_it_goes_s  see elastic_checkpoint.Saving.likely_left_s; None: nothing of it is stored yet
    begun_s       how long ago it was begun
    took_s        by the last one that was committed
    """
    if as_it_goes_s is not None or took_s is None:
        return as_it_goes_s
    return took_s - begun_s if begun_s < took_s else begun_s  # overdue, and nothing is stored: as long again


def upload_order(older_s: float | None, newest_s: float | None, left_s: float) -> UploadOrder:
    """Decide which of the two goes first.

    older_s    until the one that is being uploaded is durable; None: nobody knows
    newest_s   how long the newest takes, once it has the network to itself; None: nobody knows
    left_s     that the node is still there
    """
    if older_s is None or newest_s is None:
        return UploadOrder(False, True, "how long either takes is not known yet")
    left = f"{words.seconds(max(0.0, left_s))} are left"

    takes = f"the older one takes {words.seconds(older_s)} more, the newest {words.seconds(newest_s)}, and {left}"
    if older_s + newest_s <= left_s:
        return UploadOrder(False, True, f"both are likely to be done: {takes}")
    if newest_s + _ANEW_S <= left_s:
        return UploadOrder(True, False, f"only one is likely to be done: {takes}")
    if older_s <= left_s:
        return UploadOrder(False, False, f"the newest is not likely to be done: {takes}")
    return UploadOrder(False, False, f"neither is likely to be done: {takes}")


def too_late(likely_left_s: float | None, left_s: float, newest: str) -> str | None:
    """Return what people are told of a save that goes on too slowly for the time that its node has; None: nothing.

    likely_left_s  as it goes; None: nobody knows yet
    newest         what is saved, in words
    """
    if likely_left_s is None or likely_left_s <= left_s:
        return None
    return (
        f"the save on leaving will not be done in time: as it goes it takes {words.seconds(likely_left_s)} more, and "
        f"this node is there for {words.seconds(max(0.0, left_s))}\n"
        f"  state  {newest} stays the newest, unless it gets faster: of a save nothing counts before all is there\n"
        "  next   faster storage, or a shorter save_every, so that less is lost"
    )

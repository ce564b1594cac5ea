"""How long will a save take until it is durable? As long as the last one, after what is being written now.

It travels with what is saved: a coordinator that goes on after another one, or after a restart, has made no save
itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic.events import words

_KEY = "save_s"  # in a commit's meta


class SaveDuration:
    """seconds  of the last save, this worker's or another's; None: nobody knows"""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._looked = False

    def measured(self, seconds: float) -> None:
        self.seconds = seconds

    def meta(self) -> dict[str, float]:
        """For a commit."""
        return {} if self.seconds is None else {_KEY: self.seconds}

    def learn(self, meta: Mapping[str, Any]) -> None:
        """From a commit, unless one was measured here meanwhile."""
        said = meta.get(_KEY)
        if self.seconds is None and isinstance(said, float):
            self.seconds = said

    def look_up(self, newest: Callable[[], Mapping[str, Any]]) -> None:
        """Once, and in the background: nobody waits for that. newest: reads the newest commit's meta, if it can"""
        if self.seconds is None and not self._looked:
            self._looked = True
            threading.Thread(target=lambda: self.learn(newest()), name="elastic-save-duration", daemon=True).start()


def likely_s(took_s: float | None, under_way_s: Sequence[float], *, uploaders: int = 1) -> float | None:
    """Until a save that begins now is durable; None: nobody knows.

    took_s       by the last one
    under_way_s  how long ago those were begun that are not done, the oldest first: it is being written, and one that
                 waits behind it gives way to the new one
    uploaders    nodes that share this one, at best in equal parts
    """
    if took_s is None:
        return max(under_way_s, default=None)
    return took_s / uploaders + sum(max(0.0, took_s - begun_s) for begun_s in under_way_s[:1])


def too_late(likely_left_s: float | None, left_s: float, newest: str) -> str | None:
    """What people are told of a save that goes on too slowly for the time that its node is still there; None: nothing.

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

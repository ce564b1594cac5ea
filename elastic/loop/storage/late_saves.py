"""Saves that came too late: a machine was lost, the run went on under its next claim, and they were begun anew.

One is chance. Where uploads take longer than machines last, none is ever committed, though each of them goes well and
training does, too: people hear of it at the second in a row, and each time that it is twice as many.
"""

from __future__ import annotations


class LateSaves:
    """Counts the saves in a row that came too late."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def committed(self) -> None:
        """Begin to count anew: a save was committed."""
        self._in_a_row = 0

    def came_too_late(self, *, took_s: float, newest: str) -> str | None:
        """Count another save that came too late; return what people are told, if anything.

        took_s  from its beginning to its end
        newest  what is saved, in words
        """
        self._in_a_row += 1
        if self._in_a_row < 2 or self._in_a_row & (self._in_a_row - 1):
            return None
        return (
            f"{self._in_a_row} saves in a row came too late: before each was uploaded a machine was lost, and the run "
            "went on\nunder another claim\n"
            f"  found  the last one took {took_s:.0f} s, which is longer than machines last here\n"
            f"  state  training goes on, and another save is begun; {newest} is the newest, and what came after it is "
            "nowhere but\n         in memory\n"
            "  next   give the run storage that takes its saves faster (nearer, or with more bandwidth), or machines "
            "that are\n         lost less often"
        )

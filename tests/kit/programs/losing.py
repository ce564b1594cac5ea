"""The last message of a step's exchange, lost: a worker takes over a step that it has computed itself."""

from __future__ import annotations

import time
from typing import Any

import elastic
from elastic.errors import PeerLost
from elastic.loop.gradient_sync import GradientSync


def lose(step: int, run: elastic.Run) -> None:
    """Once, on rank 1."""
    carry_out = GradientSync.carry_out
    again = [True]

    def throws_it_away(self: GradientSync, position: tuple[int, int, int], *arguments: Any, **named: Any) -> Any:
        agreed = carry_out(self, position, *arguments, **named)
        if position[1] == step and run.rank == 1 and again:
            again.pop()
            time.sleep(0.2)  # the others apply it, and run the code behind it
            raise PeerLost("thrown away on purpose", step=step, phase="test")
        return agreed

    GradientSync.carry_out = throws_it_away  # type: ignore[method-assign]

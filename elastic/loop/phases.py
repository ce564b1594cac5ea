"""What is this worker doing? Said to its agent, which tells a hang by it, and to the stopwatch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from elastic.events.timing import EVALUATE, SAVE, WAIT
from elastic.loop.context import Context
from elastic.loop.run_state import RunState
from elastic.loop.view_group import ViewGroup
from elastic.membership.progress import Phase

_SPENT_ON = {Phase.WAITING: WAIT, Phase.SAVING: SAVE, Phase.EVALUATING: EVALUATE}
_COMPILATION_S = 1800.0  # for one compilation; what takes longer counts as hung


class Phases:
    """Tells the agent and the stopwatch what this worker is doing.

    long_section_s  how long the section that the script has declared may take; None: it is in none
    """

    def __init__(self, context: Context, state: RunState, view_group: ViewGroup) -> None:
        self._progress = context.progress
        self._stopwatch = context.stopwatch
        self._state = state
        self._view_group = view_group
        self.long_section_s: float | None = None

    def enter(self, phase: Phase, limit_s: float | None = None) -> None:
        """Say that `phase` begins; after `limit_s` it counts as hung, by default as membership/progress.py has it."""
        self._stopwatch.at(_SPENT_ON.get(phase))
        self.sign(phase, limit_s)

    def sign(self, phase: Phase, limit_s: float | None = None) -> None:
        """Say to the agent alone that `phase` begins: the time is spent on what it was spent on before."""
        if not self._progress.is_read:  # nobody looks, under any other launcher than `elastic run`
            self._progress.phase = phase
            return
        self._progress.at(phase, generation=self._view_group.generation, step=self._state.step, limit_s=limit_s)

    def enter_script(self) -> None:
        """Say that the script's own code runs, until a step's shares are computed."""
        ended = self._state.finished and not self._state.in_loop
        self.enter(Phase.ENDED if ended else Phase.BETWEEN, self.long_section_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that this worker waits for others within the block: one that waits cannot be the one that hangs."""
        phase = self._progress.phase
        self.enter(Phase.WAITING)
        try:
            yield
        finally:
            self.enter(phase, self.long_section_s)

    @contextmanager
    def long_section(self, at_most_s: float = math.inf) -> Iterator[None]:
        """Let the block take so long before it counts as hung; see Run.long_section."""
        phase, outer = self._progress.phase, self.long_section_s
        self.long_section_s = at_most_s
        self.enter(phase, at_most_s)
        try:
            yield
        finally:
            self.long_section_s = outer
            self.enter(phase, outer)

    def compiles(self) -> None:
        """Allow for a compilation, in the middle of a step or between two, which may take minutes."""
        self.sign(self._progress.phase, _COMPILATION_S)

    def has_compiled(self) -> None:
        """Give the phase that goes on its usual limit again."""
        self.sign(self._progress.phase)

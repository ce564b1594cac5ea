"""What a script may ask of its step, whichever of the loops it has."""

from __future__ import annotations

from elastic.loop.steps.step_in_hand import StepInHand


class ScriptStep:
    """A step as a script sees it; what this worker does for it is in_hand's."""

    def __init__(self, in_hand: StepInHand) -> None:
        self.in_hand = in_hand

    @property
    def index(self) -> int:
        """Return the step's number, from 0, over the whole run."""
        return self.in_hand.index

    @property
    def epoch(self) -> int:
        """Return the epoch of its first example."""
        return self.in_hand.epoch

    @property
    def last_of_epoch(self) -> bool:
        """Return whether no later step reads that epoch."""
        return self.in_hand.last_of_epoch

    @property
    def passed_over(self) -> str | None:
        """Return why it was passed over and not applied (see `OnBad`); None: it was not, or not yet."""
        return self.in_hand.passed_over

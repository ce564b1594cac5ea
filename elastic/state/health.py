"""How a run has been: the last steps' losses and norms, and which steps were passed over. Part of its state.

It travels with the weights, in saves, to newcomers and to whoever takes a step over, so that every worker and every
resume decides alike, and knows what was passed over. A rollback takes the rest of the state back, and of this only the
recent values: what was passed over stays known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from elastic.state.on_bad import OnBad, Signs, why_bad


@dataclass(frozen=True)
class Passed:
    """A bad step, `step`, and those passed over with it, from `first` on; `why` is the reason.

    More than one where a rollback took back what was applied since the save that it went to.
    """

    first: int
    step: int
    why: str


class Health:
    """A run's last losses and norms, and its steps passed over. Without a rule it only keeps what is known."""

    def __init__(self, rule: OnBad | None) -> None:
        self._rule = rule
        self._losses: list[float] = []
        self._norms: list[float] = []
        self.in_a_row = 0
        self.passed: list[Passed] = []

    def why_bad(self, signs: Signs) -> str | None:
        """Say why a step is bad; None: it is not."""
        return None if self._rule is None else why_bad(self._rule, signs, self._losses, self._norms)

    def step_applied(self, signs: Signs) -> None:
        """Note the loss and the norm of a step that was well and is applied, which ends a row of bad ones."""
        self.in_a_row = 0
        if self._rule is None or self._rule.spike is None or not signs.finite:
            return
        self._norms = [*self._norms, signs.norm][-self._rule.window :]
        if signs.loss is not None:
            self._losses = [*self._losses, signs.loss][-self._rule.window :]

    def step_passed_over(self, passed: Passed) -> None:
        """Note steps that were passed over, and count one more bad step in a row."""
        self.passed = [*self.passed, passed]
        self.in_a_row += 1

    def went_back(self, before: Health) -> None:
        """Take over what was passed over before a rollback, which has loaded this state."""
        self.passed, self.in_a_row = before.passed, before.in_a_row  # recent values stay as loaded

    def copy(self) -> Health:
        """Return a copy of what was passed over, without the recent losses and norms."""
        copied = Health(self._rule)
        copied.passed, copied.in_a_row = self.passed, self.in_a_row
        return copied

    def why(self, step: int) -> str | None:
        """Return why this step was passed over; None: it was not."""
        return next((one.why for one in reversed(self.passed) if one.first <= step <= one.step), None)

    def ranges(self) -> list[list[int]]:
        """Return the steps passed over as [first, end) ranges, in order, with neighbours as one."""
        return merged((one.first, one.step + 1) for one in self.passed)

    def digest(self) -> int:
        """Return 63 bits of which steps were passed over, 0 if none were; each exchange compares them."""
        if not self.passed:
            return 0
        return xxhash.xxh3_64_intdigest(json.dumps(self._where()).encode()) >> 1  # it travels as an int64

    def difference(self, other: dict[str, Any]) -> str | None:
        """Say which steps were passed over here and not in `other`, a state_dict, or the other way round."""
        theirs = Health(None)
        theirs.load_state_dict(other)
        apart = [one for one in self._where() if one not in theirs._where()]
        apart += [one for one in theirs._where() if one not in self._where()]
        if not apart:
            return None
        return "what became of " + ", ".join(f"step {step}" for _, step in apart[:4])

    def _where(self) -> list[list[int]]:
        return [[one.first, one.step] for one in self.passed]

    @property
    def is_blank(self) -> bool:
        """Return whether it has nothing to save."""
        return self._rule is None and not self.passed

    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": list(self._losses),
            "norms": list(self._norms),
            "in_a_row": self.in_a_row,
            "passed": [asdict(one) for one in self.passed],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses, self._norms = list(state["losses"]), list(state["norms"])
        self.in_a_row = state["in_a_row"]
        self.passed = [Passed(**one) for one in state["passed"]]


def merged(ranges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return [first, end) ranges in order, with those that touch or overlap as one."""
    found: list[list[int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([first, end])
    return found

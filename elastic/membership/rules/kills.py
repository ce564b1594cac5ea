"""Says when another worker takes the place of one that was killed from outside, and when it is enough.

Pure but for what it remembers.

Kills are nobody's fault. Spot machines take workers for as long as a run lasts, and each is replaced at once. But what
the kernel kills because a step needs more memory than there is, it kills at that step every time: replacements would
come and go for ever, each after reading the state again.
"""

from __future__ import annotations

from dataclasses import dataclass

AT_ONCE, ENOUGH = 2, 7  # so many in a slot are replaced at once; so many at one step end it
WAIT_MAX_S, WAIT_UNEXPLAINED_S = 30.0, 1.0
SHORT_S = 60.0  # a life

Slot = tuple[str, int]  # node, local rank


@dataclass(frozen=True)
class Replace:
    after_s: float


@dataclass(frozen=True)
class Enough:
    """The verdict that so many kills are enough."""

    count: int


class Kills:
    """The kills in all slots of a run."""

    def __init__(self) -> None:
        self._last: dict[Slot, tuple[int | None, int]] = {}  # at which step, and how often there

    def killed(
        self, slot: Slot, *, step: int | None, applied: int, lived_s: float, out_of_memory: bool
    ) -> Replace | Enough:
        """Return after how long a worker that was killed is replaced, or that it is enough.

        step           that the worker was at; None before its first
        applied        how many steps any worker has ever applied
        out_of_memory  the kernel says so
        """
        at, count = self._last.get(slot, (step, 0))
        # it counts if nobody has applied that step meanwhile; before a first step, if the life was a short one
        counts = applied <= step if step is not None else lived_s < SHORT_S
        count = count + 1 if at == step and counts else 1
        self._last[slot] = step, count
        # Without a step a kill says nothing of the script, unless the kernel says that memory was out: replacements
        # come for ever, one a second.
        if count >= ENOUGH and (step is not None or out_of_memory):
            return Enough(count)
        late = count - AT_ONCE  # the next ones are replaced after 1, 2, 4, ... seconds; others train on meanwhile
        most_s = WAIT_MAX_S if step is not None or out_of_memory else WAIT_UNEXPLAINED_S
        return Replace(min(2.0 ** min(late - 1, 16), most_s) if late > 0 else 0.0)

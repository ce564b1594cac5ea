"""Chooses what a worker passes for nothing in a step, for the cross-check, and has the outcome compared.

What the check is of is cross_check.py's; here is its course in one step. Where two workers gave other bits for a share,
the step comes round, and all pass that share twice more before anybody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from elastic.data.data_plan import StepPlan
from elastic.errors import ExampleError, PeerLost
from elastic.group.sums import Agreed
from elastic.loop.cross_check import CrossCheck, First, Pass
from elastic.loop.disagreement import Disagreement
from elastic.loop.session import Session
from elastic.loop.steps.reading import Reader
from elastic.loop.storage.step_digest import StepDigest


class ForNothing(NamedTuple):
    """A batch that is passed for nothing; kept: see CrossCheck.begins."""

    share: int
    batch: Any
    kept: dict[int, Pass]


class CheckedShares:
    """A step's cross-check on this worker.

    check  what this worker takes part in, in the present attempt
    """

    def __init__(self, session: Session, plan: StepPlan, reader: Reader) -> None:
        self._session = session
        self._plan = plan
        self._reader = reader
        self._differing: Disagreement | None = None  # a share that all pass, in place of what this step checks
        self.check = CrossCheck()

    def begin(self, *, alone: bool) -> None:
        """Begin an attempt at the step; alone: nothing of it is compared."""
        self.check = CrossCheck() if alone else self._session.cross_check(self._plan)

    def ahead(self) -> Iterator[ForNothing]:
        """Yield what is passed ahead of this worker's own shares. Raises PeerLost, StepError."""
        check = self.check
        found, self._differing = self._differing, None
        if found is None:
            if check.first is First.FOR_NOTHING:
                yield from self._read(0, check.left)
            for share in check.passes:
                yield from self._read(share, check.theirs)
            for share in check.alone:
                yield from self._read(share, check.ours)
            return
        for _ in range(2) if self._session.holds_state(self._plan.index) else ():
            yield from self._read(found.share, check.theirs)
            check.passed_again(self._session.gradient_sync.gradients.names)
        raise check.settles(found, self._session.group)

    def first_share(self) -> Iterator[ForNothing]:
        """Yield the step's first batch, on a worker that leaves and whose peers may be gone."""
        try:
            if self._session.context.config.streams is not None:
                batch = self._reader.next().batch
            else:
                batch = self._reader.beside(0)
        except PeerLost:  # whoever resumes reads it again
            return
        except ExampleError:
            if self._session.mates is not None:  # they pass it together, or none does
                yield ForNothing(0, self._reader.stand_in(), {})
            return
        yield ForNothing(0, batch, self.check.left)

    def left_behind(self) -> StepDigest | None:
        """Return what is left for whoever resumes here; None: there is nothing to compare."""
        digests = self.check.digests_of_first()
        return StepDigest.of_share(self._plan.index, digests) if digests is not None else None

    def compare(self, agreed: Agreed) -> None:
        """Compare what all have passed. Raises PeerLost; StepError or ShareDiffers on all."""
        session = self._session
        names = session.gradient_sync.gradients.names
        self.check.compare(
            agreed.own, agreed.passed, session.group, names, step=self._plan.index, examples=self._examples
        )
        self.check = CrossCheck()  # lets go of what was read

    def pass_again(self, found: Disagreement) -> None:
        """Have all pass this share in the step's next attempt."""
        self._differing = found

    def _examples(self, share: int) -> Sequence[int]:
        """Return the numbers of the examples of a share's first micro-batch; none of streams."""
        if self._session.context.config.streams is not None:
            return []
        numbers: list[int] = self._plan.micro_batches(share)[0].indices.tolist()
        return numbers

    def _read(self, share: int, kept: dict[int, Pass]) -> Iterator[ForNothing]:
        """Yield what another worker passes as its own, if it can be read here."""
        try:
            with self._reader.timed():
                batch = self._reader.beside(share)
        except ExampleError:
            if not self._session.context.config.data.num_workers:
                raise
            self.check.gives_up()  # a loader process reads it, and maybe nobody else can
            if self._session.mates is not None:  # they are about to pass something, and do so together
                yield ForNothing(share, self._reader.stand_in(), {})
            return
        yield ForNothing(share, batch, kept)

"""The loop as people have it: `for epoch in run.epochs(): for x, y in run.batches(): ...`, its body unchanged.

Steps come from Loop.steps, like those of `for step in run`: the same boundary, recovery and end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from elastic.config import Config
from elastic.data.data_plan import DataPlan, StepPlan
from elastic.errors import ConfigError, StepError
from elastic.group.fingerprint import script_site
from elastic.loop.plain.step import Count, PlainStep
from elastic.loop.run_state import RunState


def check_plain(config: Config) -> Count | None:
    """Return what counts a batch. Raises ConfigError where an argument of the run is for the other loop."""
    update = config.update
    for name, given, instead in (
        (
            "update=Update(clip_grad_norm=...)",
            update.clip_grad_norm is not None,
            "clip between backward and optimizer.step(), as without elastic",
        ),
        (
            "update=Update(apply=...)",
            update.apply is not None,
            "do it between backward and optimizer.step(); run.on_apply(function) goes with both loops",
        ),
        (
            "compute=Compute(overlap=False)",
            not config.compute.overlap,
            "leave it out, and use checkpoint(..., use_reentrant=False)",
        ),
    ):
        if given:
            raise ConfigError(
                f"Run({name}) is for `for step in run`; in a loop over run.batches() its own code is the update\n"
                f"  next  {instead}"
            )
    return config.data.count


class Batches(Iterator[Any]):
    """What `Run.batches` gives: this worker's batches, one after the other, and how many they are.

    Its length counts those of this epoch that this worker was handed, and those that are left for it if no worker comes
    or goes; without `Run.epochs`, those of the whole run. A batch is a share of a step's (see `Run.batches`), so more
    workers have fewer each; steps are counted by `Run.steps_per_epoch`.
    """

    def __init__(self, given: Iterator[Any], count: Callable[[], int]) -> None:
        self._given = given
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return self._given

    def __next__(self) -> Any:
        return next(self._given)

    def __len__(self) -> int:
        return self._count()


class PlainLoop:
    """The loop over batches, which knows of no steps.

    state      the run's
    to_check   how many batches this worker will be handed for nothing, ahead of a launch's first step
    checks     whether it has one in hand
    bodies     how many batches this worker is handed in a step, in the present view
    steps      begins the loop, and gives its steps
    passes     is called where the script comes to the beginning of an epoch that this step is past; what it returns,
               when the script asks for the step's batches
    go_on      is called where the script goes on from batches that it has left: raises where others have not
    """

    def __init__(
        self,
        state: RunState,
        to_check: Callable[[], int],
        checks: Callable[[], bool],
        bodies: Callable[[StepPlan], int],
        plan: DataPlan,
        steps: Callable[[], Iterator[PlainStep]],
        passes: Callable[[PlainStep], Callable[[], None]],
        go_on: Callable[[], None],
    ) -> None:
        self._state = state
        self._to_check, self._checks = to_check, checks
        self._bodies = bodies
        self._plan = plan
        self._begins = steps
        self._passes = passes
        self._go_on = go_on
        self._passed: Callable[[], None] = _nothing
        self._steps: Iterator[PlainStep] | None = None
        self._next: PlainStep | None = None
        self.by_epochs = False
        self._first, self._end = 0, state.total_steps  # steps of this epoch, or of the run
        self._handed = 0
        self._handed_of_step = (-1, 0, 0)  # the step, its attempt, and how many batches of that
        self.left_at: str | None = None  # where the script left the last batches that it took, if it did

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that are left; see Run.epochs."""
        steps = self._start()
        self.by_epochs = True
        while (step := next(steps, None)) is not None:
            self._next = step
            self._first, end = (self._plan.first_step_of(step.in_hand.epoch + more) for more in (0, 1))
            self._end, self._handed = min(end, self._state.total_steps), 0
            if step.in_hand.step_in_epoch:  # this worker comes into the midst of the epoch
                self._passed = self._passes(step)
            yield step.in_hand.epoch
            if self._next is not None:
                self._go_on()
                where = "" if self.left_at is None else f": it was left at {self.left_at}"
                raise StepError(
                    f"epoch {step.in_hand.epoch} has steps left, and run.batches() was not read to its end{where}\n"
                    "  state  what was applied stays; no example may be left out\n"
                    "  next   read `for batch in run.batches()` to its end in every epoch; run.stop(reason) ends a run "
                    "early"
                )

    def batches(self) -> Batches:
        """Return this worker's batches; see Run.batches."""
        return Batches(self._give(), self._count)

    def progress(self, bar: Iterable[Any]) -> Iterator[Any]:
        """Yield this worker's batches, and move a bar with the steps; see Run.progress."""
        moves, moved = iter(bar), 0
        for batch in self._give():
            moved += self._move(moves, moved)
            yield batch
        self._move(moves, moved)
        if isinstance(moves, Generator):
            moves.close()  # as where a run is stopped

    def _move(self, moves: Iterator[Any], moved: int) -> int:
        """Move the bar on to the step in hand; return by how many."""
        due = self._state.step - self._first + 1 - moved  # bars count an item when the next one is asked for
        for _ in range(due):
            next(moves, None)
        return max(due, 0)

    def _count(self) -> int:
        """Return how many batches were handed out, and are left: the loop has foreseen them from here on."""
        self._state.foreseen = "epoch" if self.by_epochs else "run"
        step, end = self._state.step, self._end
        if step >= end:
            return self._handed
        of_step, attempt, here = self._handed_of_step
        if (of_step, attempt) != (step, self._state.attempt):
            here = 0
        return self._to_check() + self._handed - here + self._bodies_before(end) - self._bodies_before(step)

    def _bodies_before(self, step: int) -> int:
        """Return how many batches this worker is handed in the steps before `step`, in the present view."""
        # Only the last step of an epoch may be smaller; where epochs run into each other, that of the run.
        period = self._plan.steps_per_epoch or self._state.total_steps
        full, last = (self._bodies(self._plan.step(at)) for at in (0, min(period, self._state.total_steps) - 1))
        periods, rest = divmod(step, period)
        return periods * (full * (period - 1) + last) + rest * full

    def _hand(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Hand out batches, and count them for `_count`."""
        for batch in batches:
            self._handed += 1
            if not self._checks():
                step, attempt, here = self._handed_of_step
                now = self._state.step, self._state.attempt
                self._handed_of_step = (*now, here + 1 if (step, attempt) == now else 1)
            yield batch

    def _give(self) -> Iterator[Any]:
        """Hand out batches, and note where the script leaves them."""
        left_at, self.left_at = self.left_at, None
        try:
            yield from self._hand(self._batches(left_at))
        except GeneratorExit:
            self.left_at = script_site()
            raise

    def _batches(self, left_at: str | None) -> Iterator[Any]:
        """Yield the batches of this epoch, or of the run. Raises StepError where they were read or begun before."""
        steps = self._start()
        if not self.by_epochs:
            for step in steps:
                yield from step.batches()
            return
        if self._next is None:
            raise StepError(
                "run.batches() was called again in one epoch, whose batches were all read\n"
                "  state  what was applied stays\n"
                "  next   take the next epoch: for epoch in run.epochs()"
            )
        if self._next.under_way:
            where = "" if left_at is None else f": they were left at {left_at}"
            raise StepError(
                f"run.batches() was begun again in the middle of step {self._next.in_hand.index}{where}\n"
                "  state  what was applied stays; no example may be left out\n"
                "  next   read it once in each epoch, to its end; a batch to look at comes from the data set itself"
            )
        passed, self._passed = self._passed, _nothing
        passed()
        while (now := self._next) is not None:
            yield from now.batches()
            # The code behind an epoch's last batch is the script's own between two steps: the boundary behind it is
            # crossed when the next epoch begins.
            self._next = None if now.in_hand.last_of_epoch else next(steps, None)

    def steps(self) -> Iterator[PlainStep]:
        """Yield the steps, each with its update behind its batches; see Run.steps."""
        for step in self._start():
            step.update_follows = True
            yield step
            step.check_closed()

    def _start(self) -> Iterator[PlainStep]:
        """Begin the loop, or go on with it by epochs; return its steps. Raises ConfigError where it is under way."""
        if self._steps is None:
            self._steps = self._begins()
        elif not self.by_epochs:
            raise ConfigError(
                "the loop is under way already: run.batches() and run.steps() go over all epochs\n"
                "  next  for epoch in run.epochs(): for batch in run.batches(): ..."
            )
        return self._steps


def _nothing() -> None:
    """Undo nothing: the epoch begins here, for this worker as for the run."""

"""The loop as people have it: `for epoch in run.epochs(): for x, y in run.batches(): ...`, its body unchanged.

Steps come from Loop.steps, like those of `for step in run`: the same boundary, recovery and end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import torch

from elastic.config import Config
from elastic.data.data_plan import StepPlan
from elastic.errors import ConfigError, PeerLost, StepError
from elastic.group.fingerprint import Kind, announce, script_site
from elastic.group.sums import Agreed
from elastic.loop.assignment import bodies
from elastic.loop.plain.loss_means import Divided, FirstLosses, means_apart, sum_for_a_mean
from elastic.loop.plain.step import Count, PlainStep
from elastic.loop.plain.update import OwnUpdate
from elastic.loop.session import Session
from elastic.loop.steps.current_step import CurrentStep, Purpose
from elastic.loop.steps.update import Update


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


class Engine(Protocol):
    """What drives steps, see loop.py.

    step  the one in hand; None: none is
    """

    step: CurrentStep | None

    def steps(self, next_step: Callable[[], PlainStep]) -> Iterator[PlainStep]:
        """Yield step after step, and cross the boundary behind each."""

    def current_step(self) -> CurrentStep:
        """Return the step that comes next."""


class PlainLoop:
    """The loop over batches, which knows of no steps: an adapter of the engine's.

    update   what the loop's own code is
    step     the newest
    left_at  where the script left the last batches that it took, if it did
    """

    def __init__(self, session: Session, engine: Engine, update: Update, count: Count | None) -> None:
        config = session.context.config
        self._session = session
        self._state = session.state
        self._plan = config.plan
        self._engine = engine
        self._updates = update
        self._count_of = count
        self.update = OwnUpdate(
            config,
            begins=update.begin_own,
            ends=self._end_update,
            stepping=session.train_state.applied.stepping if session.context.live is not None else _nothing_around,
        )
        self.update.install()
        session.on_close(self.update.remove)
        self._first_losses = FirstLosses(self._buffers, self._warn_of_sum, self._warn_of_means)
        session.on_close(self._first_losses.close)
        self.step: PlainStep | None = None
        self._passed: Callable[[], None] = _nothing
        self._steps: Iterator[PlainStep] | None = None
        self._next: PlainStep | None = None
        self.by_epochs = False
        self._first, self._end = 0, self._state.total_steps  # steps of this epoch, or of the run
        self._handed = 0
        self._handed_of_step = (-1, 0, 0)  # the step, its attempt, and how many batches of that
        self.left_at: str | None = None

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that are left; see Run.epochs."""
        steps = self._start()
        self.by_epochs = True
        while (step := next(steps, None)) is not None:
            self._next = step
            self._first, end = (self._plan.first_step_of(step.epoch + more) for more in (0, 1))
            self._end, self._handed = min(end, self._state.total_steps), 0
            if step.current.plan.step_in_epoch:  # this worker comes into the midst of the epoch
                self._passed = self._watch_repeated_writes(step)
            yield step.epoch
            if self._next is not None:
                self._check_left_epoch()
                where = "" if self.left_at is None else f": it was left at {self.left_at}"
                raise StepError(
                    f"epoch {step.epoch} has steps left, and run.batches() was not read to its end{where}\n"
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
        """Move the bar on to the current step; return by how many."""
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
        return self._for_nothing() + self._handed - here + self._bodies_before(end) - self._bodies_before(step)

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
            current = self._engine.step
            if current is None or current.batch.purpose is not Purpose.CHECK:
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
                f"run.batches() was begun again in the middle of step {self._next.current.index}{where}\n"
                "  state  what was applied stays; no example may be left out\n"
                "  next   read it once in each epoch, to its end; a batch to look at comes from the data set itself"
            )
        passed, self._passed = self._passed, _nothing
        passed()
        while (now := self._next) is not None:
            yield from now.batches()
            # The code behind an epoch's last batch is the script's own between two steps: the boundary behind it is
            # crossed when the next epoch begins.
            self._next = None if now.last_of_epoch else next(steps, None)

    def steps(self) -> Iterator[PlainStep]:
        """Yield the steps, each with its update behind its batches; see Run.steps."""
        for step in self._start():
            step.update_follows = True
            yield step
            step.check_closed()

    def _start(self) -> Iterator[PlainStep]:
        """Begin the loop, or go on with it by epochs; return its steps. Raises ConfigError where it is under way."""
        if self._steps is None:
            self._steps = self._engine.steps(self._next_step)
        elif not self.by_epochs:
            raise ConfigError(
                "the loop is under way already: run.batches() and run.steps() go over all epochs\n"
                "  next  for epoch in run.epochs(): for batch in run.batches(): ..."
            )
        return self._steps

    def _next_step(self) -> PlainStep:
        """Return the step that comes next."""
        current, own = self._engine.current_step(), self.update
        self.step = step = PlainStep(
            current,
            count=self._count_of,
            on_batch=self._first_losses.watch,
            on_exact=own.opens,
            on_pass_over=self._pass_over,
            check=own.check_closed,
        )
        own.next_step(step)
        state = self._session.train_state
        state.since_boundary.note(None if current.plan.step_in_epoch else state.noting())
        return step

    def _end_update(self, step: PlainStep, agreed: Agreed) -> None:
        """Commit the step that the script's own code has applied."""
        read = self.update.was_asked and not step.update_follows  # there a loop needs not ask
        self._updates.end_own(step.current, agreed, read=read)
        self._go_on_behind(step)

    def _pass_over(self, step: PlainStep, agreed: Agreed) -> None:
        """Pass over the step that the script's own code would have applied."""
        self._updates.pass_over(step.current, agreed)
        self._go_on_behind(step)

    def _go_on_behind(self, step: PlainStep) -> None:
        step.leave_to_the_script()
        self._session.phases.enter_script()

    def _for_nothing(self) -> int:
        """Return how many batches for nothing come ahead of the next step, as far as it is known."""
        state = self._state
        begun = self.step is not None and self.step.current.begun
        if begun or state.finished:
            return 0
        check = self._session.cross_check(self._session.step_plan(state.step))
        return max(check.for_nothing, check.at_least) + (check.copied is not None)

    def _bodies(self, step: StepPlan) -> int:
        """Return how many batches this worker is handed in a step, in the present view."""
        view_group = self._session.view_group
        return bodies(self._session.context.config, step, view_group.rank, view_group.world_size)

    def _watch_repeated_writes(self, step: PlainStep) -> Callable[[], None]:
        """Watch what the script does at the beginning of an epoch that its state is past; return what undoes it."""
        writes = self._session.train_state.writes_at_beginning()
        self._session.on_close(writes.close)
        return partial(writes.undo, partial(_written_at_beginning, step), step=step.index)

    def _check_left_epoch(self) -> None:
        """Raise CollectiveMismatch where this script goes on to the next epoch, and others go on with this one."""
        step = self._engine.step
        if step is None or not step.applied:
            return
        with suppress(PeerLost), self._session.phases.waiting():
            announce(self._session.group, Kind.BREAK_FOR_ALL, step=self._state.step, site=self.left_at).check()

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for model in self._session.context.config.models.values() for buffer in model.buffers()]

    def _warn_of_sum(self, node: str) -> None:
        self._session.context.console.warn(sum_for_a_mean(node))

    def _warn_of_means(self, one: Divided, other: Divided) -> None:
        if self._plan.virtual_workers > 1:  # else a share is the whole batch
            taken = "examples" if self._count_of is None else "what count= says"
            self._session.context.console.warn(means_apart(one, other, taken=taken))


def _nothing() -> None:
    """Undo nothing: the epoch begins here, for this worker as for the run."""


def _nothing_around(_: Any) -> AbstractContextManager[None]:
    return nullcontext()


def _written_at_beginning(step: PlainStep, what: str) -> StepError:
    """Return the error for a script that changes at an epoch's beginning what has that change already."""
    return StepError(
        f"at the beginning of epoch {step.epoch}, which this worker comes into at step {step.index}, the script "
        f"wrote to {what}\n"
        "  found  the epoch began earlier, and the state that came has that change already: it would be made twice\n"
        "  state  what was applied and saved is whole; nothing was trained here\n"
        "  next   make it at the end of the epoch before, behind its last batch"
    )

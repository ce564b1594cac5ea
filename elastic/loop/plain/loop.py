"""The loop as people have it: `for epoch in run.epochs(): for x, y in run.batches(): ...`, its body unchanged.

Steps come from Loop.steps, like those of `for step in run`: the same boundary, recovery and end. The code behind an
epoch's last batch is the script's own between two steps, so its boundary is crossed when the next epoch begins.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

from elastic.config import Config
from elastic.errors import ConfigError, StepError
from elastic.group.fingerprint import script_site
from elastic.loop.plain.step import Count, PlainStep

_COUNTS = re.compile(r"\benumerate\(.*\bbatches\(")


def check_plain(config: Config, update: Any, count: Count | None) -> Count | None:
    """Returns `count`. Raises ConfigError where an argument of the run is for the other loop."""
    for name, given, instead in (
        ("clip_grad_norm", config.clip_grad_norm, "clip between backward and optimizer.step(), as without elastic"),
        ("update", update, "do it between backward and optimizer.step(); run.on_apply(function) goes with both loops"),
        ("overlap=False", not config.overlap or None, "leave it out, and use checkpoint(..., use_reentrant=False)"),
    ):
        if given is not None:
            raise ConfigError(
                f"Run({name}) is for `for step in run`; in a loop over run.batches() its own code is the update\n"
                f"  next  {instead}"
            )
    if count is not None and not callable(count):
        raise ConfigError(f"count={count!r}; expected a function of a batch, such as lambda batch: batch[1].numel()")
    return count


class PlainLoop:
    """
    steps   begins the loop, and gives its steps
    passes  is called where the script comes to the beginning of an epoch that this step is past; what it returns, when
            the script asks for the step's batches
    go_on   is called where the script goes on from batches that it has left: raises where others have not
    say     tells people
    """

    def __init__(
        self,
        steps: Callable[[], Iterator[PlainStep]],
        passes: Callable[[PlainStep], Callable[[], None]],
        go_on: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._begins = steps
        self._say = say
        self._looked = False
        self._passes = passes
        self._go_on = go_on
        self._passed: Callable[[], None] = _nothing
        self._steps: Iterator[PlainStep] | None = None
        self._next: PlainStep | None = None
        self.by_epochs = False
        self.left_at: str | None = None  # where the script left the last batches that it took, if it did

    def epochs(self) -> Iterator[int]:
        """See Run.epochs."""
        steps = self._start()
        self.by_epochs = True
        while (step := next(steps, None)) is not None:
            self._next = step
            if step.in_hand.step_in_epoch:
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

    def batches(self) -> Iterator[Any]:
        """See Run.batches."""
        left_at, self.left_at = self.left_at, None
        self._look_for_a_count(script_site())
        try:
            yield from self._batches(left_at)
        except GeneratorExit:
            self.left_at = script_site()
            raise

    def _batches(self, left_at: str | None) -> Iterator[Any]:
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
            self._next = None if now.in_hand.last_of_epoch else next(steps, None)

    def steps(self) -> Iterator[PlainStep]:
        """See Run.steps."""
        for step in self._start():
            step.update_follows = True
            yield step
            step.check_closed()

    def _look_for_a_count(self, site: str) -> None:
        """At the script's line that asks for the first batch."""
        looked, self._looked = self._looked, True
        path, _, line = site.rpartition(":")
        if not looked and path and _COUNTS.search(linecache.getline(path, int(line))):
            self._say(
                f"{site} counts batches, of which a worker has as many in a step as it has shares: the count depends "
                "on the\n         number of workers; to print it is all right, and run.step_index counts steps"
            )

    def _start(self) -> Iterator[PlainStep]:
        if self._steps is None:
            self._steps = self._begins()
        elif not self.by_epochs:
            raise ConfigError(
                "the loop is under way already: run.batches() and run.steps() go over all epochs\n"
                "  next  for epoch in run.epochs(): for batch in run.batches(): ..."
            )
        return self._steps


def _nothing() -> None:
    """The epoch begins here, for this worker as for the run."""

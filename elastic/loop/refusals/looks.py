"""What a script keeps beside the run is looked for while it waits for its next step, or batch; and when.

In a process's first steps, where an epoch begins, and now and then: a look takes tenths of a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastic.config import Config
from elastic.loop.refusals.kept_copies import KeptCopies
from elastic.loop.refusals.loop_variables import LoopVariables
from elastic.loop.refusals.other_averages import OtherAverages
from elastic.loop.refusals.other_modules import OtherModules
from elastic.loop.refusals.other_optimizers import OtherOptimizers
from elastic.loop.refusals.wrapped_optimizers import WrappedOptimizers
from elastic.state.modules import modules, roots

_FIRST, _EVERY = 3, 16  # steps


class Looks:
    """
    say   tells people, once for all workers; `warn`, of this worker alone
    """

    def __init__(self, config: Config, *, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        extra = config.extra
        handed = (*config.models.values(), *config.schedulers.values(), *extra.values(), config.scaler)
        handed += (*config.optimizers.values(),)

        def known() -> dict[str, torch.nn.Module]:
            return roots(config.models, extra)

        self._other_modules = OtherModules(known, extra)
        self._other_averages = OtherAverages(config.parameters, extra)
        self._other_optimizers = OtherOptimizers(config.parameters, handed)
        self._wrapped_optimizers = WrappedOptimizers(config.optimizers.values(), handed)
        self._kept_copies = KeptCopies(known, extra, tell=warn)
        self._loop_variables: LoopVariables | None = LoopVariables(
            lambda: [*handed, *(one for *_, one in modules(known()))],
            shares=config.plan.virtual_workers,
            say=say,
            warn=warn,
        )
        self._steps = 0
        self._first = 0, True
        self._closely = True

    def open(self) -> Callable[[], None]:
        """Returns what ends it."""
        return self._other_modules.open()

    def begin(self, step: int, *, begins_epoch: bool) -> bool:
        """Whether there is to be a look in this step of this process."""
        self._steps += 1
        if self._steps == 1:
            self._first = step, begins_epoch
        self._closely = self._steps <= _FIRST or begins_epoch
        return self._closely or self._steps % _EVERY == 0 or self._kept_copies.looks_again

    def look(self, step: int, *, over_steps: bool, by_epochs: bool, joined_as: int | None) -> None:
        """In that step.

        over_steps  it is a loop over steps; else over batches
        by_epochs   the script has a loop over epochs, and for each of them another one over batches
        joined_as   this worker's rank as it came to others; None: it began with them
        Raises StepError for what would be silently different.
        """
        self._other_modules.look(step, closely=self._closely, over_steps=over_steps)
        self._kept_copies.look(step)
        if self._steps > 1 and self._loop_variables is not None:  # a process's first step is begun sooner without it
            first, begins_epoch = self._first
            self._loop_variables.look(
                first, whole_turns=begins_epoch and by_epochs, over_steps=over_steps, joined_as=joined_as
            )
            self._loop_variables = None
        if over_steps:
            self._other_optimizers.look(step)
        if self._steps <= _FIRST:
            self._other_averages.look(step, over_steps=over_steps)
            self._wrapped_optimizers.look()
        else:
            self._other_averages.forget()

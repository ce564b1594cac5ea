"""The schedules of a loop that steps its optimizers itself: which calls of `scheduler.step()` count.

behind a step's exchange           it does what it does
before an epoch's first batch      likewise; not where this process comes into the middle of the epoch, whose
                                   scheduler was stepped at its beginning already
in a body, before the exchange     it does nothing, since the same call follows behind the exchange. One that comes
                                   before the body's backward pass alone would never count: that is refused; and so
                                   is one that is told something else in another body of the step
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from elastic.config import Config
from elastic.errors import UNTOUCHED, ConfigError, StepError
from elastic.loop.plain.step import PlainStep


class OwnSchedules:
    """Lets through those calls of schedulers that count.

    exchanged  whether the gradients of the current step are exact, or no step is in hand
    """

    def __init__(self, schedulers: Mapping[str, Any], exchanged: Callable[[], bool]) -> None:
        self._schedulers = schedulers
        self._exchanged = exchanged
        self._step: PlainStep | None = None
        self._early: set[str] = set()  # stepped before a backward pass of the current step, and not behind it
        self._told: dict[str, tuple[int, str]] = {}  # what each was told in the current step before it was exchanged
        self._counted: dict[str, str | None] = {}  # and what behind it, if that was something else
        self._undo: list[Callable[[], None]] = []
        self._ungated = False

    def install(self) -> None:
        for name, scheduler in self._schedulers.items():
            self._gate(name, scheduler)

    def remove(self) -> None:
        self._ungated = True
        while self._undo:
            self._undo.pop()()

    def next_step(self, step: PlainStep | None) -> None:
        self._step, self._early, self._told = step, set(), {}

    def check_closed(self, step: PlainStep) -> None:
        """Raise StepError for a scheduler that the body of an updated step has stepped to no effect."""
        if self._early and step.passed_over is None:
            raise StepError(
                f"scheduler.step() of {', '.join(map(repr, sorted(self._early)))} was called before the backward pass "
                f"of step {step.current.index}, and not behind it\n"
                "  found  a step has several bodies, one for each share, and what precedes its exact gradients does "
                "nothing in any of them\n"
                f"  state  step {step.current.index} is applied; it is not saved\n"
                "  next   call it behind optimizer.step(), or once an epoch: before its first batch, or behind its last"
            )

    def _gate(self, name: str, scheduler: Any) -> None:
        """Give a scheduler a class whose `step` does nothing where the call does not count."""
        kind = type(scheduler)

        def step(gated: Any, *args: Any, **kwargs: Any) -> Any:
            self._check_alike(name, (*args, *kwargs.values()))
            return kind.step(gated, *args, **kwargs) if self._counts(name) else None

        # Another class for as long as the loop runs: what lies in its `__dict__` is part of its state_dict.
        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})

        def undo() -> None:
            scheduler.__class__ = kind

        self._undo.append(undo)

    def _check_alike(self, name: str, args: tuple[Any, ...]) -> None:
        """Raise StepError for a schedule that is told something else in one body than in another.

        Which body's call counts, that of a worker's last share, depends on the world size. What follows from the steps
        that are applied is alike in all bodies; behind the update it is told what the next step's bodies are.
        """
        step = self._step
        if self._ungated or step is None or not step.current.begun or step.over:
            return
        told = ", ".join(map(_said, args))
        attempt, of_bodies = self._told.get(name, (-1, told))
        if self._exchanged():
            self._counted[name] = told if told != of_bodies else None
            return
        before = self._counted.pop(name, None)
        if attempt == step.current.attempt:
            before = of_bodies
        self._told[name] = step.current.attempt, told
        if before is not None and before != told:
            raise StepError(
                f"scheduler.step({told}) of {name!r} was called in a body of step {step.current.index}, and "
                f"scheduler.step({before}) in the one before\n"
                "  found  a step has a body for each share of its batch, and the last one's call counts: which that is "
                f"depends on the world size\n{UNTOUCHED}"
                "  next   give what is the same in all of them, such as run.step_index / run.steps_per_epoch in place "
                "of an epoch and a\n         count of batches, or run.sums; or call it behind an epoch's batches"
            )

    def _counts(self, name: str) -> bool:
        """Return whether a call counts, and note one that comes before its body's backward pass."""
        step = self._step
        if self._ungated or step is None or self._exchanged():
            self._early.discard(name)
            return True
        if not step.current.begun:
            return step.update_follows or step.current.plan.step_in_epoch == 0
        if step.current.batch.is_due:
            self._early.add(name)
        return False


def _said(argument: Any) -> str:
    return repr(float(argument) if isinstance(argument, torch.Tensor) and argument.numel() == 1 else argument)


def check_scheduled(config: Config) -> None:
    """Raise ConfigError for an optimizer with a schedule that the run does not know: torch marks those."""
    known = [*config.schedulers.values(), *(one for one in config.extra.values() if hasattr(one, "optimizer"))]
    for name, optimizer in config.optimizers.items():
        if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            continue
        others = [one for one in _schedulers_of(optimizer) if one not in _within(known)]
        if others or not any(getattr(one, "optimizer", optimizer) is optimizer for one in known):
            kind = (type(others[0]) if others else LRScheduler).__name__
            raise ConfigError(
                f"optimizer {name!r} has a {kind} that the run does not know\n"
                "  found  it would step in every body, and so at a pace that depends on how many shares a worker has; "
                "and it would begin anew where a run goes on\n"
                "  next   hand it over: Run(scheduler=scheduler), or scheduler={'first': ..., 'second': ...}"
            )


def _schedulers_of(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """Return all schedulers of an optimizer: it does not know them, so those are asked who hold it.

    That walks over every object of the process, as seldom as it can: a scheduler holds it by itself, or, where somebody
    has asked for its `__dict__`, by that.
    """
    holders = gc.get_referrers(optimizer)
    attributes = [one for one in holders if type(one) is dict and one.get("optimizer") is optimizer]
    of_schedulers = [one for one in attributes if "last_epoch" in one or "_schedulers" in one]
    owners = gc.get_referrers(*of_schedulers) if of_schedulers else []
    return [one for one in [*holders, *owners] if isinstance(one, LRScheduler) and one.optimizer is optimizer]


def _within(known: list[Any]) -> list[Any]:
    """Return these, and the schedulers that they hold, as SequentialLR holds some."""
    found: list[Any] = []
    waiting = [*known]
    while waiting:
        one = waiting.pop()
        if any(one is other for other in found):
            continue
        found.append(one)
        for value in getattr(one, "__dict__", {}).values():
            waiting += [part for part in (value if isinstance(value, (list, tuple)) else [value])
                        if isinstance(part, LRScheduler)]  # fmt: skip
    return found

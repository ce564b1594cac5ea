"""Bugs in what a step adds up, draws and applies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.loop.steps.step:Step.backward", plan="baseline", caught_by={"reference"})
def average_the_workers_means(right: Any, act: Act) -> Any:
    """Each worker's gradient is its mean, and the means are averaged: examples of a small share count more."""

    def backward(self: Any, loss: Any, count: int) -> None:
        assignment = self.current.session.gradient_sync.assignment
        plan = self.current.plan
        mine = sum(plan.sizes[share] for share in assignment.shares)
        workers = sum(1 for rows in assignment.schedule.rows if rows)
        if mine * workers != plan.count:
            act()
        right(self, loss * (plan.count / (workers * mine)), count)

    return backward


@planted("elastic.loop.steps.current_step:share_seed", plan="baseline", caught_by={"reference"})
def reuse_random_streams(right: Any, act: Act) -> Any:
    """Every worker counts its shares from 0, and so reuses the random streams of the first one."""
    return lambda seed, step, phase, share, micro: right(seed, step, phase, share - _FIRST[0], micro)


_FIRST = [0]


@reuse_random_streams.also("elastic.loop.gradient_sync:GradientSync.plan")
def _(right: Any, act: Act) -> Any:
    def plan(self: Any, step: Any) -> None:
        right(self, step)
        _FIRST[0] = self.assignment.shares.start
        if _FIRST[0]:
            act()

    return plan


@planted("elastic.run:Run._compute", plan="lost", caught_by={"reference"})
def apply_a_redone_step_twice(right: Any, act: Act) -> Any:
    """The update of a step that is done again is applied twice."""

    def compute(run: Any, step: Any) -> None:
        right(run, step)
        if step.attempt:
            act()
            right(run, step)

    return compute


@planted("elastic.group.gradients:GradientSum._take", plan="lost", caught_by={"reference"})
def keep_a_dead_generation_s_gradients(right: Any, act: Act) -> Any:
    """What was added up when the exchange failed is added to the step that is done again."""

    def take(self: Any, indices: Iterable[int]) -> None:
        taken = list(indices)
        for index in taken:
            stale, gradient = _STALE.pop(index, None), self._layout.parameters[index].grad
            if gradient is not None:
                _SEEN[index] = gradient.clone()
                if stale is not None:
                    act()
                    gradient.add_(stale)
        right(self, taken)

    return take


@keep_a_dead_generation_s_gradients.also("elastic.group.gradients:GradientSum._take_all")
def _(right: Any, act: Act) -> Any:
    return lambda self: False  # so that all come by the other way


_SEEN: dict[int, Any] = {}
_STALE: dict[int, Any] = {}


@keep_a_dead_generation_s_gradients.also("elastic.loop.session:Session.change_view")
def _(right: Any, act: Act) -> Any:
    def change_view(self: Any, *arguments: Any, lost: bool, **named: Any) -> Any:
        if lost:
            _STALE.update(_SEEN)
        return right(self, *arguments, lost=lost, **named)

    return change_view


@planted("elastic.group.buffers:Snapshot", plan="teacher", caught_by={"final"})
def forget_the_buffers_of_a_teacher(right: Any, act: Act) -> Any:
    """BatchNorm of a module in `extra=` keeps what this worker's shares made of it."""

    def snapshot(models: Any, extra: Any) -> Any:
        if extra:
            act()
        return right(models, {})

    return snapshot

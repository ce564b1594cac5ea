"""Bugs in what a step adds up, draws and applies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.loop.steps.step:Step.backward", plan="baseline", caught_by={"reference"})
def average_the_workers_means(right: Any, act: Act) -> Any:
    """Each worker's gradient is its mean, and the means are averaged: examples of a small share count more."""

    def backward(self: Any, loss: Any, count: int) -> None:
        assignment = self._session.exchange.assignment
        plan = self.in_hand.plan
        mine = sum(plan.sizes[share] for share in assignment.shares)
        workers = sum(1 for rows in assignment.schedule.rows if rows)
        if mine * workers != plan.count:
            act()
        right(self, loss * (plan.count / (workers * mine)), count)

    return backward


@planted("elastic.loop.exchange:Exchange.carry_out", plan="alone", caught_by={"reference"})
def divide_a_short_batch_by_a_full_one(right: Any, act: Act) -> Any:
    """The last, short batch of an epoch is weighted wrong: its sum is divided by the size of a full one."""

    def carry_out(self: Any, *arguments: Any, **named: Any) -> Any:
        agreed = right(self, *arguments, **named)
        full = self._config.plan.batch_size
        if agreed.count < full:
            act()
            for parameter, trains in zip(self._set.parameters, self._set.trained, strict=True):
                if trains:
                    parameter.grad.mul_(agreed.count / full)
        return agreed

    return carry_out


@planted("elastic.group.gradients:GradientSum._take", plan="alone", caught_by={"reference"})
def clip_before_the_sum(right: Any, act: Act) -> Any:
    """Gradients are clipped before they are added up, share by share, and not their sum."""

    def take(self: Any, indices: Iterable[int]) -> None:
        taken = list(indices)
        for index in taken:
            gradient = self._parameters[index].grad
            if gradient is not None and gradient.norm() > 1.0:
                act()
                gradient.div_(gradient.norm())
        right(self, taken)

    return take


@clip_before_the_sum.also("elastic.group.gradients:GradientSum._take_all")
def _(right: Any, act: Act) -> Any:
    return lambda self: False  # so that all come by the other way


@planted("elastic.group.treesum:TreeSum.join", plan="baseline", caught_by={"reference"})
def add_in_the_order_of_ranks(right: Any, act: Act) -> Any:
    """Sums are added in the order of the ranks and not in the tree's: only the last bits differ."""

    def join(self: Any) -> None:
        if self._reduce or self._local:
            right(self)
            return
        rows = self._schedule.joins
        in_order = tuple((0, row) for row in range(1, sum(self._schedule.rows)))
        if sorted(rows) != sorted(in_order):
            act()
        self.pending.wait()
        for into, out_of in in_order:
            self._received[into] += self._received[out_of]
        self.pending = self.group.all_gather(self.result, self._received[0])

    return join


@planted("elastic.loop.steps.step_in_hand:share_seed", plan="baseline", caught_by={"reference"})
def reuse_random_streams(right: Any, act: Act) -> Any:
    """Every worker counts its shares from 0, and so reuses the random streams of the first one."""
    return lambda seed, step, phase, share, micro: right(seed, step, phase, share - _FIRST[0], micro)


_FIRST = [0]


@reuse_random_streams.also("elastic.loop.exchange:Exchange.plan")
def _(right: Any, act: Act) -> Any:
    def plan(self: Any, step: Any) -> None:
        right(self, step)
        _FIRST[0] = self.assignment.shares.start
        if _FIRST[0]:
            act()

    return plan


@planted("elastic.loop.steps.step_in_hand:share_seed", plan="resumed", caught_by={"repeat", "reference"})
def draw_from_the_process(right: Any, act: Act) -> Any:
    """Random streams depend on the process that draws."""

    def share_seed(*arguments: int) -> int:
        from os import getpid

        act()
        return int(right(*arguments)) ^ getpid()

    return share_seed


@planted("elastic.loop.steps.step_in_hand:StepInHand.batches", plan="lost", caught_by={"reference"})
def draw_anew_for_a_redone_step(right: Any, act: Act) -> Any:
    """A step that is done again draws other random numbers than the first time."""

    def batches(self: Any, exchange: Any, driver: Any) -> Any:
        _AGAIN[0] = self.attempt
        if self.attempt:
            act()
        return right(self, exchange, driver)

    return batches


_AGAIN = [0]


@draw_anew_for_a_redone_step.also("elastic.loop.steps.step_in_hand:share_seed")
def _(right: Any, act: Act) -> Any:
    return lambda seed, step, phase, share, micro: right(seed, step, phase, share, micro + 1000 * _AGAIN[0])


@planted("elastic.loop.steps.step:Step.add", plan="lost", caught_by={"reference"})
def add_sums_twice(right: Any, act: Act) -> Any:
    """What the script adds up counts twice in a step that is done again."""

    def add(self: Any, **values: Any) -> None:
        right(self, **values)
        if self.attempt:
            act()
            right(self, **values)

    return add


@planted("elastic.run:Run._compute", plan="lost", caught_by={"reference"})
def apply_a_redone_step_twice(right: Any, act: Act) -> Any:
    """The update of a step that is done again is applied twice."""

    def compute(run: Any, step: Any) -> None:
        right(run, step)
        if step.attempt:
            act()
            right(run, step)

    return compute


@planted("elastic.run:Run._compute", plan="lost", caught_by={"reference"})
def leave_the_scheduler_behind(right: Any, act: Act) -> Any:
    """The scheduler does not step with a step that is done again."""

    def compute(run: Any, step: Any) -> None:
        schedulers = dict(run._config.schedulers)
        if step.attempt:
            act()
            run._config.schedulers.clear()
        right(run, step)
        run._config.schedulers.update(schedulers)

    return compute


@planted("elastic.loop.steps.step:Step.backward", plan="lost", caught_by={"reference"})
def drop_the_gradient_of_a_lost_worker(right: Any, act: Act) -> Any:
    """Survivors do the shares of a lost worker again, and lose their gradients."""
    own: dict[int, set[int]] = {}

    def backward(self: Any, loss: Any, count: int) -> None:
        mine = own.setdefault(self.index, set())
        if not self.attempt:
            mine.add(self.in_hand.share)
        elif self.in_hand.share not in mine:
            act()
            loss = loss * 0.0
        right(self, loss, count)

    return backward


@planted("elastic.group.gradients:GradientSum._take", plan="lost", caught_by={"reference"})
def keep_a_dead_generation_s_gradients(right: Any, act: Act) -> Any:
    """What was added up when the exchange failed is added to the step that is done again."""

    def take(self: Any, indices: Iterable[int]) -> None:
        taken = list(indices)
        for index in taken:
            stale, gradient = _STALE.pop(index, None), self._parameters[index].grad
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


@planted("elastic.loop.steps.step_in_hand:after_seed", plan="draws", caught_by={"final"})
def draw_after_a_step_from_the_process(right: Any, act: Act) -> Any:
    """What the script draws after a step depends on the worker that draws it."""

    def after_seed(seed: int, step: int) -> int:
        from os import getpid

        act()
        return int(right(seed, step)) ^ getpid()

    return after_seed

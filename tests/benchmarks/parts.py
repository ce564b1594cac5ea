"""Where does a step's processor time go? Named functions are timed from outside, each without what it calls by another
name.

Timed is the CPU time of the training thread, which others on the machine disturb less than the wall clock. A timer's
own cost is measured first and taken off, as far as it is the same each time: a look at this clock is a system call.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import elastic
import elastic.loop.gradient_sync
import elastic.loop.steps.current_step
import elastic.loop.steps.update
import elastic.run
from elastic.group.form import Work
from elastic.group.gradients import GradientSum
from elastic.group.sums import ShareSums
from elastic.loop.context import Context

Timed = tuple[Any, str, str]
"""An object, class or module, its function's name, and the part of the step that it counts as."""

ORDER = ("loader", "plan", "seeds", "forward", "backward", "hooks", "gradients", "send", "gradients out", "buffers",
         "guards", "announcement", "sums", "wait", "update", "observer, stopwatch", "events", "boundary",
         "rest")  # fmt: skip
_CALLS = 20_000  # to measure a timer


def of_run(run: elastic.Run) -> list[Timed]:
    """The parts of a step of Run. "wait" is the thread's own time in it; "rest" holds the loop's body."""
    assert run._loop is not None
    session, loop = run._loop.session, run._loop
    sync = session.gradient_sync
    gradients, buffers = sync.gradients, sync.buffers
    assert isinstance(gradients, GradientSum)
    compiling = [] if session.compiling is None else [session.compiling]
    return [
        (session.loader, "next", "loader"),
        (elastic.loop.steps.current_step, "pieces", "plan"),
        (session, "step_plan", "plan"),
        (sync, "plan", "plan"),
        (session, "seed", "seeds"),
        (elastic.loop.steps.current_step, "share_seed", "seeds"),
        (torch.autograd, "backward", "backward"),
        *((gradients, name, "gradients") for name in ("begin", "begin_pass", "end_pass", "_take", "_take_all")),
        (gradients._queue, "send", "send"),
        (gradients, "finish", "gradients out"),
        *((buffers, name, "buffers") for name in ("begin", "share_done", "start", "finish", "apply", "digest")),
        (session.body, "begin", "guards"),
        (session.body, "end", "guards"),
        (session.trained, "refresh", "guards"),
        *((one, "check", "guards") for one in compiling),
        (elastic.loop.gradient_sync, "announce", "announcement"),
        (sync, "_meet", "announcement"),
        (ShareSums, "add", "sums"),
        (sync._sums, "exchange", "sums"),
        (Work, "wait", "wait"),
        (torch.nn.utils, "clip_grad_norm_", "update"),
        *((optimizer, "step", "update") for optimizer in run.optimizers.values()),
        (Context, "moment", "observer, stopwatch"),
        (session.phases, "enter", "observer, stopwatch"),
        (session.phases, "sign", "observer, stopwatch"),
        (run.events, "emit", "events"),
        (elastic.loop.steps.update, "digest_of_indices", "events"),
        (elastic.loop.steps.update, "digest_of_sums", "events"),
        (loop._boundary, "requests", "boundary"),
        (loop._boundary, "cross", "boundary"),
    ]


def of_peer(peer: Any) -> list[Timed]:
    """The same of a plain loop. Under DDP, sends and waits are in its forward and backward passes."""
    return [(peer, "read", "loader"), (torch.autograd, "backward", "backward"), (peer, "update", "update")]


def measure(
    timed: Sequence[Timed],
    workload: Any,
    step: Callable[[], object],
    steps: int,
    gradients: GradientSum | None = None,
) -> dict[str, float]:
    """Milliseconds per step by part, over `steps` calls of `step`. gradients: whose hooks are a part"""
    watch = _Watch()
    with _watched([*timed, (workload, "loss", "forward")], watch), _hooks(gradients, watch):
        for _ in range(steps):
            watch.call("rest", step)
    return {part: watch.spent_ms(part) / steps for part in ORDER if part in watch.calls}


class _Watch:
    def __init__(self) -> None:
        self._empty()
        for _ in range(_CALLS):
            self.call("outer", self.call, "inner", int)
        self._inside_ns = self._spent_ns["inner"] / _CALLS
        self._around_ns = (self._spent_ns["outer"] - self._spent_ns["inner"]) / _CALLS
        self._empty()

    def _empty(self) -> None:
        self._spent_ns: Counter[str] = Counter()
        self._within: Counter[str] = Counter()  # calls of other parts
        self.calls: Counter[str] = Counter()
        self._inner_ns = [0]
        self._parts = [""]

    def call(self, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.calls[part] += 1
        self._within[self._parts[-1]] += 1
        self._parts.append(part)
        self._inner_ns.append(0)
        begun_ns = time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            whole_ns = time.thread_time_ns() - begun_ns
            self._spent_ns[part] += whole_ns - self._inner_ns.pop()
            self._inner_ns[-1] += whole_ns
            self._parts.pop()

    def spent_ms(self, part: str) -> float:
        timers_ns = self.calls[part] * self._inside_ns + self._within[part] * self._around_ns
        return max(0.0, self._spent_ns[part] - timers_ns) / 1e6


@contextmanager
def _watched(timed: Sequence[Timed], watch: _Watch) -> Iterator[None]:
    originals = [(owner, name, name in vars(owner), getattr(owner, name)) for owner, name, _ in timed]
    for owner, name, part in timed:
        setattr(owner, name, _timed(watch, part, getattr(owner, name), method=isinstance(owner, type)))
    try:
        yield
    finally:
        for owner, name, own, original in originals:
            setattr(owner, name, original) if own else delattr(owner, name)


def _timed(watch: _Watch, part: str, original: Callable[..., Any], *, method: bool) -> Callable[..., Any]:
    if not method:
        return functools.partial(watch.call, part, original)

    def call(*args: Any, **kwargs: Any) -> Any:
        return watch.call(part, original, *args, **kwargs)

    return call


@contextmanager
def _hooks(gradients: GradientSum | None, watch: _Watch) -> Iterator[None]:
    """Autograd holds the hooks themselves, so they are registered anew."""
    if gradients is None:
        yield
        return
    originals = list(gradients._hooks.arrivals)
    gradients._hooks.arrivals[:] = [functools.partial(watch.call, "hooks", original) for original in originals]
    gradients.open()
    try:
        yield
    finally:
        gradients._hooks.arrivals[:] = originals
        gradients.open()

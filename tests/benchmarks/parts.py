"""Where does a step's time go? Named functions are timed from outside, each without what it calls by another name.

The timers cost a microsecond or two per call, so steps that are watched are not the steps that are compared.
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
import elastic.loop.step_in_hand
import elastic.loop.update
import elastic.run
from elastic.group.form import Work
from elastic.group.sums import ShareSums

Timed = tuple[Any, str, str]
"""An object, class or module, its function's name, and the part of the step that it counts as."""

ORDER = ("data", "seeds", "forward", "backward", "merge", "send", "gradients out", "buffers", "sums", "wait", "update",
         "events", "rest")  # fmt: skip


def of_run(run: elastic.Run, workload: Any) -> list[Timed]:
    """The parts of a step of Run. "wait" is for peers (and for gloo's own work)."""
    assert run._loop is not None
    session = run._loop.session
    gradients, buffers = session.exchange.gradients, session.exchange.buffers
    return [
        (session.loader, "next", "data"),
        (elastic.loop.step_in_hand, "pieces", "data"),
        (elastic.loop.step_in_hand, "seed_streams", "seeds"),
        (elastic.loop.step_in_hand, "share_seed", "seeds"),
        (workload, "loss", "forward"),
        (torch.autograd, "backward", "backward"),
        (gradients, "begin", "merge"),
        (gradients, "begin_pass", "merge"),
        (gradients, "end_pass", "merge"),
        (gradients, "_send", "send"),
        (gradients, "finish", "gradients out"),
        *((buffers, name, "buffers") for name in ("begin", "share_done", "start", "finish", "apply", "digest")),
        (ShareSums, "add", "sums"),
        (session.exchange._sums, "exchange", "sums"),
        (Work, "wait", "wait"),
        (torch.nn.utils, "clip_grad_norm_", "update"),
        *((optimizer, "step", "update") for optimizer in run.optimizers.values()),
        (run.events, "emit", "events"),
        (elastic.loop.update, "digest_of_indices", "events"),
        (elastic.loop.update, "digest_of_sums", "events"),
    ]


def of_peer(peer: Any, workload: Any) -> list[Timed]:
    """The same of a plain loop. Under DDP, sends and waits are in its forward and backward passes."""
    return [
        (peer, "read", "data"),
        (workload, "loss", "forward"),
        (torch.autograd, "backward", "backward"),
        (peer, "update", "update"),
    ]


def measure(timed: Sequence[Timed], step: Callable[[], object], steps: int) -> dict[str, float]:
    """Milliseconds per step by part, over `steps` calls of `step`."""
    watch = _Watch()
    with _watched(timed, watch):
        for _ in range(steps):
            watch.call("rest", step)
    return {part: 1e3 * watch.spent_s[part] / steps for part in ORDER if part in watch.spent_s}


class _Watch:
    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()
        self._inner_s = [0.0]

    def call(self, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inner_s.append(0.0)
        begun_s = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            whole_s = time.perf_counter() - begun_s
            self.spent_s[part] += whole_s - self._inner_s.pop()  # type: ignore[assignment]  # Counter adds floats
            self._inner_s[-1] += whole_s


@contextmanager
def _watched(timed: Sequence[Timed], watch: _Watch) -> Iterator[None]:
    originals = [(owner, name, name in vars(owner), getattr(owner, name)) for owner, name, _ in timed]
    for owner, name, part in timed:
        original = getattr(owner, name)
        wrapped = functools.partial(watch.call, part, original)
        setattr(owner, name, functools.partialmethod(wrapped) if isinstance(owner, type) else wrapped)
    try:
        yield
    finally:
        for owner, name, own, original in originals:
            setattr(owner, name, original) if own else delattr(owner, name)

"""Tells, once and loudly, of the first loss or gradient that is not finite, where no `on_bad=` says what becomes of it.

A run of NaN would look like a success otherwise. Nothing of the run changes: the step is applied as the script has it.
The coordinator looks at a norm of the gradients for each step, until it has something to tell: 0.13 ms of 1 M numbers
and 35 ms of 100 M on one core (2026-11-28), where a step of an MLP of 1 M parameters takes 36 ms. What the run holds is
saved as ever, and says so (`Saver`): it pushes nothing out that is better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from elastic.events import schema
from elastic.events.digests import plain_values
from elastic.events.words import counted
from elastic.group.sums import Agreed
from elastic.loop.session import Session
from elastic.state.finite import norm_later
from elastic.state.on_bad import OnBad, signs, why_bad
from elastic.state.randomness import outside_seed

_RULE = OnBad("stop")  # what counts as bad, without spikes
_READ_S = 5.0  # others wait as long as a step's examples are read again, to tell which of them is the cause
_LISTED = 20
_PHASE = 0


class NotFinite:
    """Looks for what is not finite on one worker, for as long as its session is open."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._config = session.context.config
        self._told = False
        self._waiting: Callable[[], bool] | None = None

    def judge(self, step: int, agreed: Agreed) -> None:
        """Look at a step whose `.grad` is exact, on the coordinator alone, until something was told."""
        # all replicas hold the same exact gradients
        if self._told or self._session.view_group.rank >= self._config.replica_size:
            return
        gradients = [p.grad for p in self._config.parameters().values() if p.grad is not None]
        scaler = self._config.update.scaler
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else None
        due, self._waiting = self._waiting, partial(self._judge, step, agreed, norm_later(gradients), scale)
        if self._config.device.type == "cpu":  # a GPU's norm is looked at with the next step: the host waits for none
            due, self._waiting = self._waiting, None
        if due is not None and due():
            self._told = True
            self._session.seed(outside_seed(self._config.plan.seed, step, _PHASE))  # examples were read for it

    def _judge(self, step: int, agreed: Agreed, norm: Callable[[], float], scale: float | None) -> bool:
        """Tell of a step that is not finite; return whether there was something to tell."""
        found = signs(_RULE, agreed.sums, agreed.count, norm(), scale)
        if self._config.replica_size == 1:  # else it is of this worker's part
            self._session.record.norm(step, found.norm)
        why = why_bad(_RULE, found, (), ())
        if why is not None:
            self._tell(step, why, found.by_name)
        return why is not None

    def _tell(self, step: int, why: str, found: dict[str, float]) -> None:
        examples = self._session.step_plan(step).indices.tolist() if self._config.streams is None else []
        causes = self._causes(step) if examples else []
        event = schema.NotFinite(step=step, why=why, signs=plain_values(found), examples=causes or examples[:1000])
        self._session.context.events.emit(event)
        if causes:
            of_which = f"of its {counted(len(examples), 'example')} these hold numbers that are not finite: "
            of_which += _listed(causes)
        elif examples:
            of_which = f"its {counted(len(examples), 'example')}: {_listed(examples)}"
        else:
            of_which = "its examples come from streams"
        self._session.context.console.warn(
            f"NOT FINITE: in step {step} {why}\n"
            f"  found  {of_which}\n"
            "  state  on_bad=None: the step is applied all the same. Checkpoints whose weights are not finite say so, "
            "and push out\n         none whose weights are: those stay, however long the run goes on\n"
            '  next   stop it, mend the cause, and start the same command with Update(on_bad="stop"): it goes on from '
            'the newest\n         checkpoint whose weights are finite, and ends before such a step. on_bad="skip" '
            'passes over it; to a run\n         that has begun that takes Checks(accept=["on_bad"]), too'
        )

    def _causes(self, step: int) -> list[int]:
        """Return a step's examples that hold numbers that are not finite; [] if none does, or that takes too long."""
        plan, found, until_s = self._session.step_plan(step), list[int](), time.monotonic() + _READ_S
        with suppress(Exception):  # the script's own classes, which may raise anything: it is told without them
            for share in range(len(plan.sizes)):
                for examples in plan.micro_batches(share):
                    if time.monotonic() > until_s:
                        return sorted(set(found))
                    batch = self._session.read_beside(examples)
                    for tensor in _tensors(batch):
                        if tensor.dim() and len(tensor) == len(examples):
                            rows = ~torch.isfinite(tensor).flatten(1).all(1) if tensor.dim() > 1 else ~tensor.isfinite()
                            found += examples.indices[rows.cpu().numpy()].tolist()
        return sorted(set(found))


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of floating-point numbers in a batch."""
    if isinstance(batch, torch.Tensor):
        if batch.is_floating_point():
            yield batch
    elif isinstance(batch, dict):
        for one in batch.values():
            yield from _tensors(one)
    elif isinstance(batch, (list, tuple)):
        for one in batch:
            yield from _tensors(one)


def _listed(examples: Sequence[int]) -> str:
    more = f" and {len(examples) - _LISTED} more" if len(examples) > _LISTED else ""
    return ", ".join(map(str, examples[:_LISTED])) + more

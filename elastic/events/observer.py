"""What may someone outside see of a run, and where may they touch it? The base class watches and changes nothing.

A run calls one observer at named moments and passes its dataset, its collate function and its batches through it.
Training code does not know who observes: elastic.drill plugs in here to hurt a run on purpose and to note what it
really read. Which observer a process gets is elastic.membership.environment's to say
(ELASTIC_OBSERVER="module:factory:argument").

The moments of a run, in order; those from `data` to `applied` come round again when a step is redone (`attempt` rises):

    start       the process has parsed its configuration; nothing is joined
    form        about to form a view with the other workers
    formed      the view is formed: rank, world_size and generation are set
    transfer    in a view under `elastic run`: all know who lacks the state, and it is about to be sent
    claim       about to take the claim on the run's storage
    load        about to read the state that the run goes on from
    loaded      the state is in the model: step_index steps are applied
    data        a share's examples are about to be read
    forward     a share's batch is about to be handed to the user's code
    backward    a share: immediately before loss.backward()
    exchange    this rank's shares are done; the sums are about to be exchanged
    update      exact gradients are in .grad; a failure from here on leaves a torn state; the optimizer has not stepped
    applied     the step is applied on this worker
    save        the coordinator is about to write a checkpoint
    saved       the checkpoint is committed, or copied for the writer process, which commits it whatever comes
    evaluate    an evaluation is about to begin
    finish      the last step is applied; the last save is about to begin, if it is due

Moments inside a backward pass or inside an optimizer's step need no call: an observer hooks the parameters and the
optimizers of `run` from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from elastic.events.log import EventLog

MOMENTS = (
    "start",
    "form",
    "formed",
    "transfer",
    "claim",
    "load",
    "loaded",
    "data",
    "forward",
    "backward",
    "exchange",
    "update",
    "applied",
    "save",
    "saved",
    "evaluate",
    "finish",
)


class ObservedRun(Protocol):
    """A run as an observer may read it. `rank`, `world_size` and `generation` mean nothing before `formed`."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def claim(self) -> int | None: ...
    @property
    def step_index(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def model(self) -> Any: ...
    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]: ...
    @property
    def is_coordinator(self) -> bool: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def events(self) -> EventLog: ...
    def long_section(self, at_most_s: float = ...) -> AbstractContextManager[None]: ...
    def stop(self, reason: str) -> None: ...


class Observer:
    """The null observer: everything passes through, every moment goes by."""

    def storage(self, url: str, storage_options: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
        """Return where the run lives. Called once, before anything else, with what the script says."""
        return url, storage_options

    def cadence(self, save_every: int | str | Sequence[int | str]) -> int | str | Sequence[int | str]:
        """Return how often the run saves. Called once, before anything else, with what the script says."""
        return save_every

    def cross_checks(self, part: float | None) -> float | None:
        """Return how large a part of all shares two workers pass. Called once, before anything else."""
        return part

    def loggers(self, loggers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return where `run.log` writes. Called once, before any of them is opened, with what the script says."""
        return loggers

    def dataset(self, dataset: Any) -> Any:
        """Return the dataset that the loader reads, here and in loader processes. Called once, before any read."""
        return dataset

    def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return what makes a batch of a list of examples. It may change what a batch is; `batch` undoes that."""
        return collate_fn

    def batch(self, batch: Any, *, step: int, share: int, attempt: int) -> Any:
        """Return one loaded batch of `share` (a micro-batch, where shares are split), on its way to the user's code."""
        return batch

    def recorded(self, line: Mapping[str, Any]) -> None:
        """Hear what a step came to, as it goes on record on this worker; see elastic/record/recorder.py."""

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        """Hear that `run` is at `moment`; `share` is given at data, forward and backward. May not return at all."""

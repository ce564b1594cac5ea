"""The arguments of a run that few scripts need, in five groups: `Run(data=Data(order=...), saving=Saving(keep=5))`.

Each group checks what it is given where the script writes it; what several arguments are together is config.py's.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import torch

from elastic.config.checks import check_above_zero, check_clip, check_numerics, check_part
from elastic.data.data_plan import LastBatch, check_batching
from elastic.data.loader import OnBadExample
from elastic.data.order import Order
from elastic.errors import ConfigError
from elastic.state.on_bad import OnBad, parse
from elastic_checkpoint import arguments

Mode = Literal["exact", "fast"]
G = TypeVar("G")


def _says_whose(group: type[G]) -> type[G]:
    """Have this class of a group say of an argument that it does not take where that is given, as `Run` does."""
    plain: Any = group.__init__
    taken = [each.name for each in fields(group)]  # type: ignore[arg-type]

    @functools.wraps(plain)
    def init(self: G, *args: Any, **given: Any) -> None:
        for name in [name for name in given if name not in taken]:
            in_run = {one: f"Run({one}=...)" for one in OF_RUN}
            raise unknown_argument(name, f"elastic.{group.__name__}", taken, {**in_run, **PLACES})
        plain(self, *args, **given)

    group.__init__ = init  # type: ignore[method-assign,assignment]
    return group


@_says_whose
@dataclass(frozen=True, kw_only=True)
class Data:
    """Says which examples a step reads, and how they are read.

    Args:
        order: Which examples an epoch visits, and in which order: one of `elastic.orders`. Default: `Shuffled()`.
        last_batch: That of an epoch: "short" (a smaller step), "drop", or "carry" (filled from the next epoch).
        micro_batch_size: The most examples in one forward pass: shares are passed in pieces, to bound memory.
        num_workers: Loader processes of this worker; 0 reads in the training process.
        collate_fn: Makes a batch of a list of examples; default torch's default_collate. The batch's tensors are then
            moved to the run's device.
        on_bad_example: What becomes of an example for which `dataset[i]` raises: "raise" ends the run, with
            ExampleError; "skip" leaves it out of its step and of every count, and records it.
        count: `count(batch)`: in a loop over `batches`, what a batch's loss is a mean over, such as its tokens, or the
            sum of its targets' class weights; None: its examples.

    Raises:
        ConfigError: One of these cannot work.
    """

    order: Order | None = None
    last_batch: LastBatch = "short"
    micro_batch_size: int | None = None
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    on_bad_example: OnBadExample = "raise"
    count: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        with _named(self):
            check_batching(self.order, self.last_batch, self.micro_batch_size)
            if self.on_bad_example not in ("raise", "skip"):
                raise ConfigError(f"on_bad_example={self.on_bad_example!r}; expected 'raise' or 'skip'")
            if self.on_bad_example == "skip" and self.micro_batch_size is not None:
                raise ConfigError(
                    f'on_bad_example="skip", and micro_batch_size={self.micro_batch_size}\n'
                    "  next  more virtual_workers bound memory likewise: a piece of a share that lost all of its "
                    "examples cannot be passed without moving what the share's other pieces leave in buffers"
                )
            if self.count is not None and not callable(self.count):
                raise ConfigError(
                    f"count={self.count!r}; expected a function of a batch, such as lambda batch: batch[1].numel()"
                )


@_says_whose
@dataclass(frozen=True, kw_only=True)
class Update:
    """Says what becomes of a step's gradients, and of what a forward pass writes.

    Args:
        clip_grad_norm: `for step in run` only: the largest norm of all gradients together; None leaves them.
        apply: `for step in run` only: `apply(run, step)`, instead of clip, optimizer step and scheduler step.
        scaler: A torch.amp.GradScaler. `for step in run` scales losses, and its default update unscales; in a loop over
            `batches` the script calls it as ever.
        buffers: `{name: rule}` for buffers that the forward pass writes and that belong to no normalisation layer of
            torch's (whose statistics become the mean over the shares); `*` in a name stands for any part of it. A rule
            is "first" (what share 0 leaves: a count of passes), "keep" (as before the step: what is only noted), "mean"
            (over the shares, by their examples: moving averages), "sum" (with what each share has added: a count of
            examples), "agree" (an error unless all leave the same), or a function that is given a list of the shares'
            values, in order, and returns what the buffer becomes (a queue, a memory bank).
        rebuild: `rebuild(step)`, for a script that adds parameters to its models between steps: makes of models and
            optimizers, as the script builds them, what they are after `step` steps. Called on a worker that joins then,
            or resumes there, before it gets the state.
        on_bad: What becomes of a step whose loss or gradient is not finite: "stop" ends the run before its update,
            "skip" passes over its batch, "rollback" goes back to the newest regular save and passes over what came
            since; `elastic.OnBad` names bounds for spikes, too. Weights that are not finite are not saved then, nor
            gone on from. None: the first such step is told of and applied, and checkpoints whose weights are not
            finite push out none whose weights are.

    Raises:
        ConfigError: One of these cannot work.
    """

    clip_grad_norm: float | None = None
    apply: Callable[[Any, Any], None] | None = None
    scaler: Any = None
    buffers: Mapping[str, str | Callable[[list[torch.Tensor]], torch.Tensor]] = field(default_factory=dict)
    rebuild: Callable[[int], None] | None = None
    on_bad: str | OnBad | None = None

    def __post_init__(self) -> None:
        with _named(self):
            check_clip(self.clip_grad_norm)
            parse(self.on_bad)
            if not isinstance(self.buffers, Mapping):
                raise ConfigError(f"buffers={self.buffers!r}; expected a dict")


@_says_whose
@dataclass(frozen=True, kw_only=True)
class Compute:
    """Says where a worker computes, and how its work is summed with the others'.

    Args:
        device: Default: where the model is, or, if that is main memory, where an Accelerator or Fabric of
            elastic.integrations that this process has made computes. "cuda", or a model that `.cuda()` has moved, means
            this worker's own GPU of those that its node has; workers beyond their number share them.
        mode: "exact": the same bits at any world size. "fast": a worker's shares run as one batch.
        threads: Intra-op threads; part of the run's identity, since they change bits.
        portable: Pin the instruction set to AVX2, so that processors of one maker with equal caches agree, whatever
            else they can (starts the process again if need be).
        overlap: Send gradients during the last backward pass; off for reentrant checkpointing, `for step in run` only.
        bucket_bytes: How much of the gradients travels together.
        compile_cache: Keep what torch.compile makes in the run's storage, for later machines of the same kind. Needs a
            secret of the run (ELASTIC_SECRET), the same at every launch.
        timeout_s: The deadline of every exchange.

    Raises:
        ConfigError: One of these cannot work.
    """

    device: torch.device | str | None = None
    mode: Mode = "exact"
    threads: int = 1
    portable: bool = False
    overlap: bool = True
    bucket_bytes: int = 8 << 20
    compile_cache: bool = False
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        with _named(self):
            check_above_zero(timeout_s=self.timeout_s, bucket_bytes=self.bucket_bytes)
            check_numerics(self.mode, self.threads)


@_says_whose
@dataclass(frozen=True, kw_only=True)
class Saving:
    """Says which checkpoints stay, and what opens the storage that they lie in. How often a run saves: `save_every`.

    Args:
        keep: How many of the newest checkpoints stay.
        keep_every: Beside them, of every so many steps the first checkpoint stays for good: step N itself where it was
            saved, else the next one after it.
        failures_max: After so many failed saves in a row the run stops, with SavesFailed, before more work is at
            risk; None trains on whatever happens. At a save a minute, and with what each save is tried again, 10 are 10
            to 20 minutes.
        storage_options: For fsspec's filesystem: endpoint, credentials.
        take_over: Claim the URL even if another live job holds it.

    Raises:
        ConfigError: One of these cannot work.
    """

    keep: int = 3
    keep_every: int | None = None
    failures_max: int | None = 10
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # it may hold credentials
    take_over: bool = False

    def __post_init__(self) -> None:
        meaning = "after how many failed saves in a row the run stops"
        with _named(self):
            for wrong in (
                arguments.keeping(self.keep, self.keep_every),
                arguments.count("failures_max", self.failures_max, meaning, none=True),
                arguments.options("storage_options", self.storage_options),
            ):
                if wrong is not None:
                    raise ConfigError(wrong)


@_says_whose
@dataclass(frozen=True, kw_only=True)
class Checks:
    """Says how much of a run is computed twice and compared, and which differences are let pass.

    Args:
        cross_check: The same share, passed by two workers, must give the same bits. One share of each worker
            is passed by another one, too, for nothing, in a launch's first step, before saves, and in the first
            step of who joins, and other batches or gradients are refused before anything is applied: the body, or the
            data set, depends on what it has changed itself (a hidden state, a count of bodies), or a machine computes
            wrongly. This is so large a part of all shares beside these, from 0 to 1, which costs one to two times that
            part of the time; None: none is checked.
        accept: Names of identity fields that may differ from the saved run's, and between workers; and of what the
            step behind a save gave before: "dataset_content" (what it read), "script" (its gradients, and the weights
            after it). `--accept` of `elastic run`, and ELASTIC_ACCEPT in the environment, name more.

    Raises:
        ConfigError: One of these cannot work.
    """

    cross_check: float | None = 0.0
    accept: Collection[str] = ()

    def __post_init__(self) -> None:
        with _named(self):
            check_part("cross_check", self.cross_check)


GROUPS: dict[str, type] = {"data": Data, "update": Update, "compute": Compute, "saving": Saving, "checks": Checks}
"""Argument of `Run` -> what it takes."""

PLACES = {
    each.name: f"{argument}={group.__name__}({each.name}=...)"
    for argument, group in GROUPS.items()
    for each in fields(group)
}
"""Argument of a group -> how it is written."""

OF_RUN = (
    "url", "model", "optimizer", "dataset", "batch_size", "virtual_workers", "scheduler", "epochs", "steps", "seed",
    "save_every", "extra", "loggers",
)  # fmt: skip
"""Arguments of `Run` that are no groups."""


def check_groups(**given: Any) -> None:
    """Raise ConfigError for what is given as a group and is none."""
    for argument, value in given.items():
        group = GROUPS[argument]
        if not isinstance(value, group):
            names = ", ".join(f"{each.name}=" for each in fields(group))
            raise ConfigError(
                f"{argument}={type(value).__name__}; expected an elastic.{group.__name__}, which takes {names}"
            )


def arguments_of(run: type) -> list[str]:
    """Return what `Run` is given by name."""
    return [name for name, one in inspect.signature(run).parameters.items() if one.kind is not one.VAR_KEYWORD]


def unknown_argument(
    name: str, whose: str, taken: Collection[str], elsewhere: Mapping[str, str] = PLACES
) -> ConfigError:
    """Return the error for an argument that `whose` is not given by that name.

    taken      those that it is given
    elsewhere  how those that others are given are written
    """
    if name in elsewhere:
        return ConfigError(f"{name} is given as {elsewhere[name]}")
    near = difflib.get_close_matches(name, [*taken, *elsewhere], n=1)
    own = f"one of {', '.join(taken)}"
    instead = own if not near else f"{near[0]}=" if near[0] in taken else elsewhere[near[0]]
    return ConfigError(f"{whose} has no argument {name}\n  next  {instead}")


@contextmanager
def _named(group: object) -> Iterator[None]:
    """Have an error name the group that it is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"elastic.{type(group).__name__}: {error}") from None

"""The arguments of a run, checked once before anything starts. Every refusal says what to do.

What can be known from the arguments, the model and the launch alone is refused here; what only a step
can show (a loss that is not a scalar, a sparse gradient) is refused there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from checkpoint.storage import redact
from elastic.data.data_plan import DataPlan, LastBatch, share_sizes
from elastic.data.order import Order, Sequential, Shuffled
from elastic.data.streams import Streams
from elastic.errors import ConfigError
from elastic.membership.environment import Launch

Mode = Literal["exact", "fast"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")
_COMMUNICATES = {
    "DistributedDataParallel": "hand over the plain model: Run exchanges the gradients itself",
    "DataParallel": "hand over the plain model: Run exchanges the gradients itself",
    "FullyShardedDataParallel": "hand over the plain model; sharded models are not carried yet",
    "FSDPModule": "hand over the plain model; sharded models are not carried yet",
    "SyncBatchNorm": "use BatchNorm: each share has its own statistics, whatever the world size",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What `Run` was given, in one shape: single models and optimizers are dicts of one. See `Run` for meanings."""

    url: str
    models: dict[str, torch.nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    schedulers: dict[str, Any]
    scaler: Any
    extra: dict[str, Any]
    dataset: Any
    plan: DataPlan
    clip_grad_norm: float | None
    save_every_steps: int | None
    save_every_s: float | None
    mode: Mode
    rebuild: Callable[[int], None] | None
    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    device: torch.device
    threads: int
    portable: bool
    overlap: bool
    bucket_bytes: int
    buffers: dict[str, str]
    accept: tuple[str, ...]
    keep: int
    keep_every: int | None
    save_failures_max: int | None
    take_over: bool
    timeout_s: float
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> Streams | None:
        """The dataset, where it is read one example after another."""
        return self.dataset if isinstance(self.dataset, Streams) else None

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter of all models, once, under its first name."""
        found: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for key, model in self.models.items():
            for name, parameter in model.named_parameters():
                found.setdefault(id(parameter), (f"{key}.{name}" if len(self.models) > 1 else name, parameter))
        return dict(found.values())

    def check(self) -> None:
        """See check_trained."""
        check_trained(self.models, self.optimizers)

    def numerics(self) -> dict[str, Any]:
        """The arguments that the bits of the result depend on."""
        ends = {"epochs": self.plan.epochs} if self.plan.last_batch == "carry" else {}
        data = _data_identity(self.dataset)
        return {
            **ends,
            **({} if data is None else {"dataset": data}),
            "mode": self.mode,
            "seed": self.plan.seed,
            "batch_size": self.plan.batch_size,
            "virtual_workers": self.plan.virtual_workers,
            "micro_batch_size": self.plan.micro_batch_size,
            "last_batch": self.plan.last_batch,
            "dataset_length": self.plan.dataset_length,
            "order": self.plan.order_identity,
            "clip_grad_norm": self.clip_grad_norm,
            "buffers": self.buffers,
            "portable": self.portable,
            "device": self.device.type,
            "scaled": self.scaler is not None,
        }


def configure(
    url: str | os.PathLike[str],
    launch: Launch,
    *,
    model: Any,
    optimizer: Any,
    scheduler: Any,
    scaler: Any,
    dataset: Any,
    batch_size: int,
    virtual_workers: int,
    epochs: int | None,
    steps: int | None,
    seed: int,
    last_batch: LastBatch,
    order: Order | None,
    micro_batch_size: int | None,
    save_every: int | float | str,
    device: torch.device | str | None,
    extra: Mapping[str, Any] | None,
    buffers: Mapping[str, str] | None,
    accept: Collection[str],
    storage_options: Mapping[str, Any] | None,
    clip_grad_norm: float | None,
    mode: Mode,
    rebuild: Callable[[int], None] | None,
    num_workers: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    threads: int,
    portable: bool,
    overlap: bool,
    bucket_bytes: int,
    keep: int,
    keep_every: int | None,
    save_failures_max: int | None,
    take_over: bool,
    timeout_s: float,
) -> Config:
    """Raises ConfigError for whatever cannot work."""
    _check_dicts(extra=extra, buffers=buffers, storage_options=storage_options)
    _check_above_zero(timeout_s=timeout_s, bucket_bytes=bucket_bytes)
    _check_clip(clip_grad_norm)
    _check_saves(keep, keep_every, save_failures_max)
    models = named("model", model, torch.nn.Module)
    optimizers = named("optimizer", optimizer, torch.optim.Optimizer)
    schedulers = named("scheduler", scheduler, object) if scheduler is not None else {}
    if epochs is None and steps is None:
        raise ConfigError(
            "neither epochs nor steps is given, so the run has no end; pass epochs=20, say, or steps=10_000"
        )
    plan = DataPlan(
        dataset_length=_length(dataset),
        batch_size=batch_size,
        virtual_workers=virtual_workers,
        seed=seed,
        last_batch=last_batch,
        micro_batch_size=micro_batch_size,
        epochs=epochs,
        steps=steps,
        order=_order(dataset, order),
    )
    if isinstance(dataset, Streams):
        _check_streams(epochs, num_workers, order, extra)
        dataset.deal(share_sizes(batch_size, batch_size, virtual_workers))
        extra = {**(extra or {}), "streams": dataset}
    _check_world(launch, virtual_workers, url)
    check_trained(models, optimizers)
    if mode not in ("exact", "fast"):
        raise ConfigError(f"mode={mode!r}; expected 'exact' or 'fast'")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"threads={threads!r}; expected the number of intra-op threads, 1 or more")
    every_steps, every_s = cadence(save_every)
    for name, one in schedulers.items():
        if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError(
                f"scheduler {name!r} is a ReduceLROnPlateau, which wants a metric at every step\n"
                "  next  pass it as extra={'plateau': scheduler} and call its step(metric) after the inner loop: "
                "step.sums and run.evaluate are the same on every worker"
            )
    for name, thing in (extra or {}).items():
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigError(
                f"extra={{{name!r}: {type(thing).__name__}}} has no state_dict and load_state_dict; what must survive "
                "a restart needs both"
            )
    return Config(
        url=_absolute(url),
        models=models,
        optimizers=optimizers,
        schedulers=schedulers,
        extra=dict(extra or {}),
        dataset=dataset,
        plan=plan,
        save_every_steps=every_steps,
        save_every_s=every_s,
        device=_device(device, launch, models),
        buffers=dict(buffers or {}),
        accept=accept if isinstance(accept, str) else tuple(accept),  # type: ignore[arg-type]
        storage_options=dict(storage_options or {}),
        scaler=scaler,
        clip_grad_norm=clip_grad_norm,
        mode=mode,
        rebuild=rebuild,
        num_workers=num_workers,
        collate_fn=collate_fn,
        threads=threads,
        portable=portable,
        overlap=overlap,
        bucket_bytes=bucket_bytes,
        keep=keep,
        keep_every=keep_every,
        save_failures_max=save_failures_max,
        take_over=take_over,
        timeout_s=timeout_s,
    )


def cadence(save_every: int | float | str) -> tuple[int | None, float | None]:
    """(steps, seconds) between saves, one of them None. "auto" is 60 s."""
    if save_every == "auto":
        return None, 60.0
    if isinstance(save_every, str) and (match := _DURATION.fullmatch(save_every.strip())):
        return None, float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]
    if isinstance(save_every, int) and not isinstance(save_every, bool) and save_every > 0:
        return save_every, None
    raise ConfigError(
        f"save_every={save_every!r}; expected a number of steps, a time such as '10min' or '90s', or 'auto'"
    )


def named(what: str, given: Any, kind: type) -> dict[str, Any]:
    """One object or a dict of them, as a dict."""
    things = dict(given) if isinstance(given, Mapping) and not isinstance(given, kind) else {what: given}
    if kind is object and isinstance(given, Mapping):
        things = dict(given)
    for name, thing in things.items():
        if not isinstance(thing, kind) or not isinstance(name, str):
            raise ConfigError(
                f"{what}={type(thing).__name__}; expected a {kind.__module__}.{kind.__qualname__}, "
                "or a dict of them by name"
            )
    if not things:
        raise ConfigError(f"{what}={{}} is empty; pass at least one")
    return things


def _check_dicts(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name}={value!r}; expected a dict")


def _check_above_zero(**given: Any) -> None:
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
            raise ConfigError(f"{name}={number!r}; expected a number above 0")


def _check_clip(clip: Any) -> None:
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
        raise ConfigError(f"clip_grad_norm={clip!r}; expected the largest norm, a number above 0, or None")


def _check_saves(keep: Any, keep_every: Any, save_failures_max: Any) -> None:
    if not _counts(keep):
        raise ConfigError(f"keep={keep!r}; expected how many checkpoints stay, 1 or more")
    if keep_every is not None and not _counts(keep_every):
        meaning = "a number of steps, of which the first checkpoint stays for good"
        raise ConfigError(f"keep_every={keep_every!r}; expected {meaning}, 1 or more, or None")
    if save_failures_max is not None and not _counts(save_failures_max):
        meaning = "after how many failed saves in a row the run stops"
        raise ConfigError(f"save_failures_max={save_failures_max!r}; expected {meaning}, 1 or more, or None")


def _counts(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _length(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"dataset={type(dataset).__name__} has no length or no dataset[i]; to train on each example exactly once, "
            "a run must be able to ask for any example by number\n"
            "  next  give it __len__ and __getitem__, or wrap an iterable one in a list or an index; what can only be "
            "read in sequence, in elastic.Streams"
        )
    return len(dataset)


def _order(dataset: Any, order: Order | None) -> Order:
    if order is not None:
        return order
    return Sequential() if isinstance(dataset, Streams) else Shuffled()


def _check_streams(epochs: int | None, num_workers: int, order: Order | None, extra: Mapping[str, Any] | None) -> None:
    for found, refused, instead in (
        (f"epochs={epochs}", epochs is not None, "steps=: streams have no length"),
        (f"num_workers={num_workers}", num_workers, "leave it out: streams are read in the training process"),
        (f"order={order!r}", order is not None, "leave it out: streams come in their own"),
        ("extra={'streams': …}", "streams" in (extra or {}), "another name: this one is the streams' own state's"),
    ):
        if refused:
            raise ConfigError(f"{found}, and the dataset is elastic.Streams\n  next  {instead}")


def _data_identity(dataset: Any) -> Any:
    """What a data set says of its content, or those say that it consists of; None where they say nothing."""
    if isinstance(dataset, ConcatDataset):
        parts = [_data_identity(part) for part in dataset.datasets]
        return None if all(part is None for part in parts) else parts
    if isinstance(dataset, Subset):
        return _data_identity(dataset.dataset)
    own = getattr(dataset, "data_identity", None)
    return own() if callable(own) else None


def _check_world(launch: Launch, virtual_workers: int, url: str | os.PathLike[str]) -> None:
    if launch.world_size > virtual_workers:
        raise ConfigError(
            f"{launch.world_size} workers cannot share {virtual_workers} virtual workers: "
            f"{launch.world_size - virtual_workers} would have nothing to do\n"
            f"  next  start at most {virtual_workers} workers; virtual_workers is part of the run's identity and "
            "chosen for life, three to six times the usual fleet"
        )
    if (launch.world_size > 1 or launch.channel is not None) and str(url).startswith("memory:"):
        raise ConfigError(
            f"{redact(str(url))} lives in one process's memory and several share the run; use a folder or s3://"
        )


def check_trained(models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Raises ConfigError for models and optimizers that cannot work; also where a script changes them between steps."""
    for name, model in models.items():
        _check_model(name, model)
    _check_optimizers(models, optimizers)


def _check_model(name: str, model: torch.nn.Module) -> None:
    for path, module in model.named_modules():
        where = f"{name}.{path}" if path else name
        for kind in type(module).__mro__:
            if kind.__name__ in _COMMUNICATES and kind.__module__.startswith("torch."):
                raise ConfigError(
                    f"{where} is a {kind.__name__}, which communicates in its own forward or backward pass; a lost "
                    "worker would leave the others waiting inside the model\n"
                    f"  next  {_COMMUNICATES[kind.__name__]}"
                )
        if getattr(module, "sparse", False) is True and isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            raise ConfigError(
                f"{where} gives sparse gradients, and sums in a fixed order need dense ones; use sparse=False"
            )
    for path, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"{name}.{path} is not initialised yet; run one forward pass before handing the model over"
            )
        if isinstance(parameter, DTensor):
            raise ConfigError(
                f"{name}.{path} is a DTensor; sharded models are not carried yet: hand over the plain model"
            )
        if parameter.is_complex():
            raise ConfigError(f"{name}.{path} is {parameter.dtype}; use torch.view_as_real parameters instead")


def _check_optimizers(models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    names = {id(p): f"{key}.{name}" for key, model in models.items() for name, p in model.named_parameters()}
    owner: dict[int, str] = {}
    for key, optimizer in optimizers.items():
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS evaluates the loss several times in a step, which a step of shares cannot do; use another one"
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise ConfigError(
                        f"optimizer {key!r} holds a parameter of shape {tuple(parameter.shape)} that is not one of the "
                        "model's: it would never get a gradient\n"
                        "  next  build the optimizer from the parameters of the very model you hand over"
                    )
                if owner.setdefault(id(parameter), key) != key:
                    raise ConfigError(
                        f"{names[id(parameter)]} is in optimizers {owner[id(parameter)]!r} and {key!r}; one step would "
                        "update it twice"
                    )


def _device(given: torch.device | str | None, launch: Launch, models: Mapping[str, torch.nn.Module]) -> torch.device:
    """Where this worker trains: as given, or where the model is. On a GPU without a number: its own of the node's."""
    asked = given
    devices = {tensor.device for model in models.values() for tensor in model.parameters()}
    if asked is None:
        if len(devices) > 1:
            raise ConfigError(
                f"the model lies on {', '.join(sorted(map(str, devices)))}; one worker trains on one device"
            )
        asked = next(iter(devices), torch.device("cpu"))
    device = torch.device(asked)
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={device}; gloo on CPU and NCCL on CUDA are what runs are exchanged over")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device={device}, and torch {torch.__version__} sees no GPU here; use device='cpu'")
        gpus = torch.cuda.device_count()
        # `.cuda()` without more puts the models of all workers of a node on its first GPU.
        if device.index is None or (given is None and device.index == 0):
            device = torch.device("cuda", launch.local_rank % gpus)
        if device.index >= gpus:
            raise ConfigError(f"device={device}, and torch sees {gpus} GPUs here, counted from 0")
    return device


def _absolute(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    return text if "://" in text or text.startswith("memory:") else os.path.abspath(os.path.expanduser(text))

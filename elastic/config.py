"""The arguments of a run, in one shape, checked once before anything starts (config_checks.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils.data import ConcatDataset, Subset

from elastic.config_checks import (
    check_above_zero,
    check_clip,
    check_dicts,
    check_extra,
    check_numerics,
    check_rollback,
    check_saves,
    check_schedulers,
    check_streams,
    check_trained,
    check_world,
    length_of,
    named,
)
from elastic.data.data_plan import DataPlan, LastBatch, share_sizes
from elastic.data.order import Order, Sequential, Shuffled
from elastic.data.streams import Streams
from elastic.errors import ConfigError
from elastic.membership.environment import Launch
from elastic.plan.save_rules import SaveEvery, SaveRules
from elastic.state.on_bad import OnBad, parse

Mode = Literal["exact", "fast"]


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
    saves: SaveRules
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
    on_bad: OnBad | None
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
            **self._on_bad_numerics(),
        }

    @property
    def goes_back(self) -> bool:
        """Whether a bad step takes the run back to a regular save."""
        return self.on_bad is not None and self.on_bad.action == "rollback"

    def _on_bad_numerics(self) -> dict[str, Any]:
        """Where a bad step takes the run. Nothing of a run that such steps do not change."""
        decides = {} if self.on_bad is None else self.on_bad.numerics()
        if self.goes_back:
            decides["save_every"] = self.saves.steps
        return {"on_bad": decides} if decides else {}


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
    save_every: SaveEvery,
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
    on_bad: str | OnBad | None,
    take_over: bool,
    timeout_s: float,
) -> Config:
    """Raises ConfigError for whatever cannot work."""
    check_dicts(extra=extra, buffers=buffers, storage_options=storage_options)
    check_above_zero(timeout_s=timeout_s, bucket_bytes=bucket_bytes)
    check_clip(clip_grad_norm)
    check_saves(keep, keep_every, save_failures_max)
    models = named("model", model, torch.nn.Module)
    optimizers = named("optimizer", optimizer, torch.optim.Optimizer)
    schedulers = named("scheduler", scheduler, object) if scheduler is not None else {}
    if epochs is None and steps is None:
        raise ConfigError(
            "neither epochs nor steps is given, so the run has no end; pass epochs=20, say, or steps=10_000"
        )
    plan = DataPlan(
        dataset_length=length_of(dataset),
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
        check_streams(epochs, num_workers, order, extra)
        dataset.deal(share_sizes(batch_size, batch_size, virtual_workers))
        extra = {**(extra or {}), "streams": dataset}
    check_world(launch, virtual_workers, url)
    check_trained(models, optimizers)
    check_numerics(mode, threads)
    saves = SaveRules.of(save_every)
    rule = parse(on_bad)
    check_rollback(rule, saves.steps, save_every)
    check_schedulers(schedulers)
    check_extra(extra)
    return Config(
        url=_absolute(url),
        models=models,
        optimizers=optimizers,
        schedulers=schedulers,
        extra=dict(extra or {}),
        dataset=dataset,
        plan=plan,
        saves=saves,
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
        on_bad=rule,
        take_over=take_over,
        timeout_s=timeout_s,
    )


def _order(dataset: Any, order: Order | None) -> Order:
    if order is not None:
        return order
    return Sequential() if isinstance(dataset, Streams) else Shuffled()


def _data_identity(dataset: Any) -> Any:
    """What a data set says of its content, or those say that it consists of; None where they say nothing."""
    if isinstance(dataset, ConcatDataset):
        parts = [_data_identity(part) for part in dataset.datasets]
        return None if all(part is None for part in parts) else parts
    if isinstance(dataset, Subset):
        return _data_identity(dataset.dataset)
    own = getattr(dataset, "data_identity", None)
    return own() if callable(own) else None


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

"""The arguments of a run, in one shape, checked once before anything starts (checks.py).

`Run` says what each means and makes a `Config` of them; the functions below are for those that come in several shapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import torch
from torch.utils.data import ConcatDataset, Subset

from elastic.config.argument_groups import Compute, Data, Saving, Update
from elastic.config.checks import (
    check_bad_examples,
    check_extra,
    check_optimizers,
    check_rollback,
    check_schedulers,
    check_streams,
    check_trained,
)
from elastic.config.preferred_device import preferred
from elastic.data.data_plan import DataPlan, share_sizes
from elastic.data.order import Order, Sequential, Shuffled
from elastic.data.streams import Streams
from elastic.errors import ConfigError
from elastic.logging.base import Logger
from elastic.membership.environment import Launch
from elastic.plan.save_rules import SaveEvery, SaveRules
from elastic.state.on_bad import OnBad
from elastic.state.sharding import Sharding


class Loading(TypedDict):
    """Arguments of a Loader."""

    num_workers: int
    device: torch.device
    pin_memory: bool
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Config:
    """The arguments of `Run`, in one shape: single models and optimizers are dicts of one. See `Run` for meanings.

    What an argument of a group comes to on this worker stands beside the groups: `device`, `on_bad`, `cross_check`,
    `accept`, `storage_options`, and `sharding` where models are sharded. `given` are the arguments as the script has
    written them, for the run's manifest.
    """

    url: str
    models: dict[str, torch.nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    schedulers: dict[str, Any]
    extra: dict[str, Any]
    loggers: tuple[Logger, ...]
    dataset: Any
    plan: DataPlan
    saves: SaveRules
    data: Data
    update: Update
    compute: Compute
    saving: Saving
    device: torch.device
    on_bad: OnBad | None
    cross_check: float | None
    accept: tuple[str, ...]
    storage_options: dict[str, Any] = field(repr=False)  # it may hold credentials
    sharding: Sharding | None = None
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def replica_size(self) -> int:
        """Return how many workers hold one copy of the state together."""
        return 1 if self.sharding is None else self.sharding.size

    @property
    def streams(self) -> Streams | None:
        """Return the dataset, where it is read one example after another, else None."""
        return self.dataset if isinstance(self.dataset, Streams) else None

    def loading(self) -> Loading:
        """Return how this worker's loaders read, whatever they read."""
        return {
            "num_workers": self.data.num_workers,
            "device": self.device,
            "pin_memory": self.device.type == "cuda",
            "timeout_s": self.compute.timeout_s,
        }

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return every parameter of all models, once, under its first name."""
        found: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for key, model in self.models.items():
            for name, parameter in model.named_parameters():
                found.setdefault(id(parameter), (f"{key}.{name}" if len(self.models) > 1 else name, parameter))
        return dict(found.values())

    def __post_init__(self) -> None:
        """Raise ConfigError for whatever cannot work."""
        check_optimizers(self.optimizers)
        check_trained(self.models, self.optimizers)
        check_schedulers(self.schedulers)
        check_extra(self.extra)
        check_bad_examples(self.data.on_bad_example, streams=self.streams is not None)

    def with_streams(self) -> Config:
        """Return the configuration in which a dataset of streams survives, too: how far each was read.

        Raises ConfigError.
        """
        if (streams := self.streams) is None:
            return self
        plan = self.plan
        check_streams(plan.epochs, self.data.num_workers, self.data.order, self.extra)
        streams.assign(share_sizes(plan.batch_size, plan.batch_size, plan.virtual_workers))
        return replace(self, extra={**self.extra, "streams": streams})

    def check(self) -> None:
        """Check the models and optimizers again, see check_trained."""
        check_trained(self.models, self.optimizers)

    def numerics(self) -> dict[str, Any]:
        """Return the arguments that the bits of the result depend on."""
        # With "carry" the end of the last epoch is where the last step is cut.
        ends = {"epochs": self.plan.epochs} if self.plan.last_batch == "carry" else {}
        data = _data_identity(self.dataset)
        return {
            **ends,
            **({} if data is None else {"dataset": data}),
            "mode": self.compute.mode,
            "seed": self.plan.seed,
            "batch_size": self.plan.batch_size,
            "virtual_workers": self.plan.virtual_workers,
            "micro_batch_size": self.plan.micro_batch_size,
            "last_batch": self.plan.last_batch,
            "dataset_length": self.plan.dataset_length,
            "order": self.plan.order_identity,
            "clip_grad_norm": self.update.clip_grad_norm,
            "buffers": {name: _rule(rule) for name, rule in self.update.buffers.items()},
            "portable": self.compute.portable,
            "device": self.device.type,
            "scaled": self.update.scaler is not None,
            **self._on_bad_numerics(),
            **({} if self.data.on_bad_example == "raise" else {"on_bad_example": self.data.on_bad_example}),
        }

    @property
    def goes_back(self) -> bool:
        """Tell whether a bad step takes the run back to a regular save."""
        return self.on_bad is not None and self.on_bad.action == "rollback"

    def _on_bad_numerics(self) -> dict[str, Any]:
        """Return where a bad step takes the run; nothing for a run that such steps do not change."""
        decides = {} if self.on_bad is None else self.on_bad.numerics()
        if self.goes_back:
            decides["save_every"] = self.saves.steps  # where a rollback goes changes bits
        return {"on_bad": decides} if decides else {}


def order_of(dataset: Any, order: Order | None) -> Order:
    if order is not None:
        return order
    return Sequential() if isinstance(dataset, Streams) else Shuffled()


def save_rules(save_every: SaveEvery, on_bad: OnBad | None) -> SaveRules:
    """Return the rules of `save_every`. Raises ConfigError, also where `on_bad` cannot go with them."""
    rules = SaveRules.of(save_every)
    check_rollback(on_bad, rules.steps, save_every)
    return rules


def _rule(rule: Any) -> str:
    return rule if isinstance(rule, str) else f"function {getattr(rule, '__qualname__', type(rule).__name__)}"


def extra_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a dict of what was given as `extra`. Raises ConfigError."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"extra={given!r}; expected a dict")
    return dict(given or {})


def loggers_of(given: Any) -> tuple[Logger, ...]:
    """Return what was given as `loggers`. Raises ConfigError."""
    if not isinstance(given, Iterable) or not all(isinstance(one, Logger) for one in given):
        raise ConfigError(f"loggers={given!r}; expected a list of elastic.logging's, such as [CSV('curves.csv')]")
    return tuple(given)


def _data_identity(dataset: Any) -> Any:
    """Return what a data set, or those that it consists of, say of the content; None where they say nothing."""
    if isinstance(dataset, ConcatDataset):
        parts = [_data_identity(part) for part in dataset.datasets]
        return None if all(part is None for part in parts) else parts
    if isinstance(dataset, Subset):
        return _data_identity(dataset.dataset)
    own = getattr(dataset, "data_identity", None)
    return own() if callable(own) else None


def device_of(given: torch.device | str | None, launch: Launch, models: Mapping[str, torch.nn.Module]) -> torch.device:
    """Return where this worker trains: as given, or where the model is, or its framework computes.

    On a GPU without a number it is the worker's own of the node's. Raises ConfigError.
    """
    asked = given
    devices = {tensor.device for model in models.values() for tensor in model.parameters()}
    if asked is None:
        if len(devices) > 1:
            raise ConfigError(
                f"the model lies on {', '.join(sorted(map(str, devices)))}; one worker trains on one device"
            )
        asked = next(iter(devices), torch.device("cpu"))
        if asked.type == "cpu":
            asked = preferred() or asked
    device = torch.device(asked)
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"compute=Compute(device={device}); gloo on CPU and NCCL on CUDA are what runs are exchanged over"
        )
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device={device}, and torch {torch.__version__} sees no GPU here; use compute=Compute(device='cpu')"
            )
        gpus = torch.cuda.device_count()
        # `.cuda()` without more puts the models of all workers of a node on its first GPU.
        if device.index is None or (given is None and device.index == 0):
            device = torch.device("cuda", launch.local_rank % gpus)
        if device.index >= gpus:
            raise ConfigError(f"compute=Compute(device={device}), and torch sees {gpus} GPUs here, counted from 0")
    return device


def absolute(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    return text if "://" in text or text.startswith("memory:") else os.path.abspath(os.path.expanduser(text))

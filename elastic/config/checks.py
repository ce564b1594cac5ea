"""What of a run's arguments cannot work? One function for each kind of argument; every refusal says what to do.

All raise ConfigError. What can be known from the arguments, the model and the launch alone is refused here, before
anything starts; what only a step can show (a loss that is not a scalar, a sparse gradient) is refused there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import IterableDataset

from elastic.data.order import Order
from elastic.errors import CANNOT_DO, ConfigError
from elastic.membership.environment import Launch
from elastic.state.on_bad import OnBad
from elastic.state.sharding import is_unit
from elastic_checkpoint.storage import redact
from elastic_checkpoint.storage.urls import refusal

_COMMUNICATES = {
    "DistributedDataParallel": "hand over the plain model: Run exchanges the gradients itself",
    "DataParallel": "hand over the plain model: Run exchanges the gradients itself",
    "FullyShardedDataParallel": "shard it by fully_shard(module, mesh=elastic.device_mesh()), torch's newer FSDP",
    "SyncBatchNorm": "use BatchNorm: each share has its own statistics, whatever the world size",
}


def named(what: str, given: Any, kind: type) -> dict[str, Any]:
    """Return one object or a dict of them as a dict. Raises ConfigError for what is not of `kind`."""
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


def length_of(dataset: Any) -> int:
    """Return the dataset's length. Raises ConfigError where it has none, or no example can be asked for by number."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"dataset={type(dataset).__name__} has no length or no dataset[i]; to train on each example exactly once, "
            "a run must be able to ask for any example by number\n"
            "  next  give it __len__ and __getitem__, or wrap an iterable one in a list or an index; what can only be "
            "read in sequence, in elastic.Streams"
        )
    return len(dataset)


def check_above_zero(**given: Any) -> None:
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
            raise ConfigError(f"{name}={number!r}; expected a number above 0")


def check_part(name: str, part: Any) -> None:
    """Raise ConfigError for what is no part of a whole, nor None."""
    if part is not None and not (type(part) in (int, float) and 0 <= part <= 1):
        raise ConfigError(f"{name}={part!r}; expected a number from 0 to 1, or None")


def check_clip(clip: Any) -> None:
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
        raise ConfigError(f"clip_grad_norm={clip!r}; expected the largest norm, a number above 0, or None")


def check_rollback(rule: OnBad | None, every_steps: int | None, save_every: Any) -> None:
    """Raise ConfigError where a rollback would go to a save that the clock decides on."""
    if rule is not None and rule.action == "rollback" and every_steps is None:
        raise ConfigError(
            f'update=Update(on_bad="rollback") goes back to a save, and with save_every={save_every!r} which one that '
            "is depends on the clock, and so would the result\n  next  save_every=500, say: a number of steps"
        )


def check_url(url: Any, storage_options: Any) -> None:
    """Raise ConfigError for a URL at which no storage can be opened."""
    if (found := refusal(url, storage_options)) is not None:
        raise ConfigError(str(found.error()))


def check_numerics(mode: Any, threads: Any) -> None:
    """Raise ConfigError for what is no mode, or no number of threads."""
    if mode not in ("exact", "fast"):
        raise ConfigError(f"mode={mode!r}; expected 'exact' or 'fast'")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"threads={threads!r}; expected the number of intra-op threads, 1 or more")


def check_optimizers(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Raise ConfigError for an optimizer that has no hooks of torch's."""
    for name, one in optimizers.items():
        try:
            one.register_step_pre_hook(_nothing).remove()
        except AttributeError:
            raise ConfigError(
                f"optimizer {name!r} is a {type(one).__name__} that has no hooks of torch's\n"
                "  found  its __init__ does not call that of torch.optim.Optimizer, as those that wrap another one\n"
                "  next   hand the optimizer over that it wraps, and do the rest where a step is applied: "
                "if run.stepped;\n         accelerator.prepare and fabric.setup come behind the Run"
            ) from None


def _nothing(*_: Any) -> None:
    """Stand in for a hook; nobody calls it."""


def check_schedulers(schedulers: Mapping[str, Any]) -> None:
    """Raise ConfigError for a ReduceLROnPlateau, which wants a metric at every step."""
    for name, one in schedulers.items():
        if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError(
                f"scheduler {name!r} is a ReduceLROnPlateau, which wants a metric at every step\n"
                "  next  pass it as extra={'plateau': scheduler} and call its step(metric) after the inner loop: "
                "step.sums and run.evaluate are the same on every worker"
            )


def check_extra(extra: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for what must survive a restart and has no state to save and load."""
    for name, thing in (extra or {}).items():
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigError(
                f"extra={{{name!r}: {type(thing).__name__}}} has no state_dict and load_state_dict; what must survive "
                "a restart needs both"
            )


def check_streams(epochs: int | None, num_workers: int, order: Order | None, extra: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for arguments that do not go with a dataset that is elastic.Streams."""
    for found, refused, instead in (
        (f"epochs={epochs}", epochs is not None, "steps=: streams have no length"),
        (
            f"data=Data(num_workers={num_workers})",
            num_workers,
            "leave it out: streams are read in the training process",
        ),
        (f"data=Data(order={order!r})", order is not None, "leave it out: streams come in their own"),
        ("extra={'streams': …}", "streams" in (extra or {}), "another name: this one is the streams' own state's"),
    ):
        if refused:
            raise ConfigError(f"{found}, and the dataset is elastic.Streams\n  next  {instead}")


def check_bad_examples(on_bad_example: Any, *, streams: bool) -> None:
    """Raise ConfigError where `on_bad_example="skip"` cannot leave an example out."""
    if on_bad_example == "skip" and streams:
        raise ConfigError(
            'data=Data(on_bad_example="skip"), and the dataset is elastic.Streams\n'
            "  next  pass over such examples in the streams themselves: what raises there has no number to be left out "
            "by, and nobody knows where its stream stands behind it"
        )


def check_world(launch: Launch, virtual_workers: int, url: str | os.PathLike[str]) -> None:
    """Raise ConfigError for workers that this run cannot have, and for several that would share `memory:`."""
    if launch.world_size > virtual_workers:
        raise ConfigError(
            f"{launch.world_size} workers cannot share {virtual_workers} virtual workers: "
            f"{launch.world_size - virtual_workers} would have nothing to do\n"
            f"  next  start at most {virtual_workers} workers; virtual_workers is part of the run's identity and "
            "chosen once, three to six times the usual fleet"
        )
    if (launch.world_size > 1 or launch.channel is not None) and str(url).startswith("memory:"):
        raise ConfigError(
            f"{redact(str(url))} lives in one process's memory and several share the run; use a folder or s3://"
        )


def check_trained(models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Raise ConfigError for models and optimizers that cannot work; also where a script changes them between steps."""
    for name, model in models.items():
        _check_model(name, model)
    _check_optimizers(models, optimizers)


def _check_model(name: str, model: torch.nn.Module) -> None:
    """Raise ConfigError for modules that communicate or give sparse gradients, and parameters that are not plain."""
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
    unit = next(filter(is_unit, model.modules()), None)  # the model, or that of its parts which has all weights
    in_unit = set() if unit is None else set(map(id, unit.parameters()))
    for path, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"{name}.{path} is not initialised yet; run one forward pass before handing the model over"
            )
        if isinstance(parameter, DTensor) and id(parameter) not in in_unit:
            raise ConfigError(
                f"{name}.{path} is a DTensor, and the model is no unit of fully_shard\n"
                "  next  fully_shard(model, mesh=elastic.device_mesh()), behind that of its parts"
            )
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter, DTensor):
            raise ConfigError(
                f"{name}.{path} is a {type(parameter).__name__}, a tensor subclass, and a run carries plain tensors\n"
                "  next  keep the weights plain, and quantize them in the forward pass, by torch.nn.utils.parametrize: "
                f"see\n        {CANNOT_DO}"
            )
        if parameter.is_complex():
            raise ConfigError(f"{name}.{path} is {parameter.dtype}; use torch.view_as_real parameters instead")


def _check_optimizers(models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Raise ConfigError for LBFGS, and for a parameter that is not the model's, or in two optimizers."""
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

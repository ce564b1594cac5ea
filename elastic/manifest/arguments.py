"""The arguments of `Run` as JSON: as they were given, and what they came to on this worker. Pure."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch

from elastic.config import Config

_DEEPEST = 6
_LONGEST = 100  # items of a list or mapping, characters of a name
_CHARACTERS = 10_000  # of a text
_OBJECTS = frozenset({"model", "optimizer", "scheduler", "dataset", "extra"})


def given(config: Config) -> dict[str, Any]:
    """Return the arguments that the script gave; of storage options, which may be confidential, their names.

    What a script's own objects hold is not looked at: it may be large, be data, or change meanwhile.
    """
    return {name: _of_script(value) if name in _OBJECTS else described(value) for name, value in config.given.items()}


def resolved(config: Config) -> dict[str, Any]:
    """Return what the arguments came to."""
    plan = config.plan
    found = {
        "models": {name: _name(type(model)) for name, model in config.models.items()},
        "optimizers": {name: _name(type(one)) for name, one in config.optimizers.items()},
        "schedulers": {name: _name(type(one)) for name, one in config.schedulers.items()},
        "batch_size": plan.batch_size,
        "virtual_workers": plan.virtual_workers,
        "seed": plan.seed,
        "order": plan.order_identity,
        "last_batch": plan.last_batch,
        "micro_batch_size": plan.micro_batch_size,
        "epochs": plan.epochs,
        "total_steps": plan.total_steps,
        "saves": described(config.saves),
        "device": str(config.device),
        "mode": config.compute.mode,
        "threads": config.compute.threads,
        "on_bad": described(config.on_bad),
        "cross_check": config.cross_check,
        "accept": list(config.accept),
        "replica_size": config.replica_size,
    }
    return {name: described(value) for name, value in found.items()}


def described(value: Any, depth: int = 0) -> Any:
    """Return what JSON can hold of an argument: anything else by its class, with a dataclass's fields."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value[:_CHARACTERS]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.device | torch.dtype):
        return str(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(key): described(item, depth + 1) for key, item in islice(value.items(), _LONGEST)}
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [described(item, depth + 1) for item in islice(value, _LONGEST)]
    if depth < _DEEPEST and dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
        if isinstance(options := fields.get("storage_options"), Mapping):
            fields["storage_options"] = sorted(map(str, options))
        return {"class": _name(type(value)), **{name: described(item, depth + 1) for name, item in fields.items()}}
    return {"class": _name(value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value))}


def _of_script(value: Any) -> Any:
    """Return the class of an object of the script's, or of each in a dict by its name."""
    if type(value) is dict:
        return {str(name): described(type(one)) for name, one in islice(value.items(), _LONGEST)}
    return None if value is None else described(type(value))


def _name(of: Any) -> str:
    return f"{getattr(of, '__module__', '?')}.{getattr(of, '__qualname__', of)}"[:_LONGEST]

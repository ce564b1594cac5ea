"""Answers what frameworks ask before there is a run: devices, steps of an epoch, which arguments a run takes."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch.utils.data import RandomSampler

from elastic.config.argument_groups import GROUPS, PLACES, Update, arguments_of, check_groups, unknown_argument
from elastic.config.config import absolute
from elastic.data.order import Order, Shuffled, Sizes
from elastic.errors import ConfigError
from elastic.membership import environment
from elastic.state.on_bad import parse
from elastic_checkpoint.storage import redact

if TYPE_CHECKING:
    from elastic.run import Run


def own_device(given: torch.device | str | None) -> torch.device:
    """Return the device; of "cuda" this worker's own GPU, which workers beyond their number share.

    None is a GPU where there is one, as `accelerator="auto"` has it, else the CPU.
    """
    device = torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))
    if str(device) == "cuda":
        return torch.device("cuda", environment.local_rank() % max(1, torch.cuda.device_count()))
    return device


def place_before_views() -> tuple[int, int]:
    """Return this process's (rank, local rank) before it is in a view, for what a script prints, or makes, first.

    `elastic run` gives no ranks: there each node's first worker has rank 0, and no replacement, which comes while
    others print and log.
    """
    launch = environment.read()
    if launch.channel is None:
        return launch.rank, launch.local_rank
    return (launch.local_rank or int(launch.restart > 0)), launch.local_rank


def check_device(run: Run, device: torch.device, whose: str) -> None:
    """Raise ConfigError where the run trains on another device than a framework, `whose` name it is, computes on."""
    if (run.device.type, run.device.index or 0) != (device.type, device.index or 0):
        raise ConfigError(
            f"the run trains on {run.device}, and {whose} computes on {device}; expected one device\n"
            "  state this process has taken no step, and what was committed before is whole\n"
            f"  next  make {whose} before the Run, or tell the Run: compute=Compute(device={str(device)!r})"
        )


def steps_per_epoch(dataset: Any, *, batch_size: int, drops: bool, order: Order | None) -> int:
    """Count an epoch's steps as DataPlan does. Raises ConfigError for an order that does not fit."""
    last_batch = "drop" if drops else "short"
    sizes = Sizes(dataset_length=len(dataset), batch_size=batch_size, last_batch=last_batch, seed=0)
    length = (order or Shuffled()).for_run(sizes).length
    return length // batch_size if drops else -(-length // batch_size)


def other_than_shuffle(sampler: Any) -> str | None:
    """Name a sampler that does more than to visit each example once an epoch, at random; None: it does that."""
    kind = type(sampler).__name__
    if type(sampler) is not RandomSampler and kind != "SeedableRandomSampler":  # the latter is accelerate's
        return f"a {kind}"
    if sampler.replacement or sampler.num_samples != len(sampler.data_source):
        return f"a {kind}(replacement={sampler.replacement}, num_samples={sampler.num_samples})"
    return None


def place_of(url: str) -> str:
    """Name the folder for a run's curves: all of its workers and launches find the same, without being told."""
    whole = redact(absolute(url))
    return f"{whole.rstrip('/').rpartition('/')[2]}-{xxhash.xxh3_64_hexdigest(whole.encode())[:8]}"


def has_tensorboard() -> bool:
    """Tell whether elastic.logging.TensorBoard can write here; trainers' own loggers can by tensorboardX, too."""
    return importlib.util.find_spec("tensorboard") is not None


def passes_over(arguments: Mapping[str, Any]) -> bool:
    """Tell whether a Run of these passes bad steps over, which a trainer would count as steps."""
    rule = parse(arguments.get("update", Update()).on_bad)
    return rule is not None and rule.action != "stop"


def check_arguments(given: Mapping[str, Any], run: type, *, whose: str, decided: Mapping[str, str]) -> None:
    """Raise ConfigError for what is none of a run's arguments, or is not for a trainer.

    whose    what they were given to
    decided  what the trainer decides itself -> where that is said
    """
    known = arguments_of(run)
    for name in given:
        if name in decided:
            raise _decided(whose, name, decided[name])
        if name not in known:
            raise unknown_argument(name, "elastic.Run", [each for each in known if each not in decided])
    groups = {name: value for name, value in given.items() if name in GROUPS}
    check_groups(**groups)
    for group in groups.values():
        for each in fields(group):
            if each.name in decided and getattr(group, each.name) != each.default:
                raise _decided(whose, PLACES[each.name], decided[each.name])
    if given.get("update", Update()).scaler is not None:
        raise ConfigError(f"{whose} has a scaler, which a trainer's loop does not call\n  next  bf16, which needs none")


def _decided(whose: str, name: str, instead: str) -> ConfigError:
    return ConfigError(f"{whose} has {name}, which the Trainer decides\n  next  {instead}")


def warn_of_nobody_followed(name: str) -> bool:
    """Warn that `follow` was not called; return True: once is enough."""
    warnings.warn(
        f"{name}.follow(run) was not called, so who is the main process does not follow the run: where that worker is "
        f"lost, nobody prints, logs and saves\n  next   call {name}.follow(run) first in the run's with-block",
        stacklevel=3,
    )
    return True

"""What a run carries of TrainingArguments(fsdp=, fsdp_config=), and the sharding that it asks for.

The model is sharded here, over this worker's replica, and not by accelerate: that would make DDP of it on CPUs, and
makes one unit of several modules, whose gradients a run cannot take. Parameters are gathered as they are stored:
`bf16=True` computes in bfloat16 by autocast, as it does for a model that is not sharded.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
import transformers

from elastic.errors import ConfigError
from elastic.group.replica_mesh import device_mesh
from elastic.integrations.sharded import is_sharded_model

_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")


Shard = Callable[[Any, str], None]
"""shard(model, kind): shards the model over the replica, on this kind of device."""


def without_fsdp(args: transformers.TrainingArguments) -> tuple[transformers.TrainingArguments, Shard | None]:
    """Return arguments by which the Trainer shards nothing, and what shards as they ask; None: nothing does.

    Raises:
        ConfigError: They ask for something that a run does not carry.
    """
    if not args.fsdp:
        return args, None
    config, given = args.fsdp_config, args.fsdp_plugin_args or {}
    policy = given.get("auto_wrap_policy", _POLICIES[0])
    for found, refused, instead in (
        ("fsdp_config['xla']", config["xla"], "leave it out"),
        (f"fsdp_config['version'] = {given.get('fsdp_version')}", given.get("fsdp_version") != 2,
         "2, the default: torch's fully_shard"),
        ("offload, or fsdp_config['cpu_offload']", given.get("cpu_offload"),
         "leave it out, and give a replica more workers: --replica-size"),
        ("fsdp_config['cpu_ram_efficient_loading']", given.get("cpu_ram_efficient_loading"),
         "leave it out: each worker builds the model, and keeps its part"),
        ("fsdp_config['activation_checkpointing']", given.get("activation_checkpointing"),
         "TrainingArguments(activation_checkpointing=True), which draws the same dropout again"),
        (f"fsdp_config['state_dict_type'] = {given.get('state_dict_type')!r}",
         given.get("state_dict_type") != "FULL_STATE_DICT", "leave it out: the run saves by parts"),
        (f"fsdp_config['auto_wrap_policy'] = {policy!r}", policy not in _POLICIES, f"one of {', '.join(_POLICIES)}"),
        (f"optim={str(args.optim)!r}", "fused" in str(args.optim) or "adafactor" in str(args.optim),
         "optim='adamw_torch': bits of this one depend on where a tensor is cut, or it fails on parts"),
    ):  # fmt: skip
        if refused:
            raise ConfigError(f"{found}: a run does not carry that for a sharded model\n  next  {instead}")
    alone = copy.copy(args)  # the caller's stay as they are
    alone.fsdp = alone.fsdp_plugin_args = None
    names: list[str] | None = config.get("transformer_layer_cls_to_wrap")
    return alone, partial(
        _shard,
        classes=() if policy == "NO_WRAP" else names,
        numel_over=config["min_num_params"] if policy == "SIZE_BASED_WRAP" else None,
        reshard_after_forward=bool(given.get("reshard_after_forward", True)),
    )


def _shard(
    model: Any, kind: str, *, classes: Collection[str] | None, numel_over: int | None, reshard_after_forward: bool
) -> None:
    """Shard the model by fully_shard over the replica, unless it is. Raises ConfigError for an unknown class.

    classes     whose modules become units of their own, by name; None: those that the model says are not to be split
    numel_over  or modules become units by how many parameters they have
    """
    from torch.distributed.fsdp import fully_shard

    if is_sharded_model(model):
        return
    mesh = device_mesh(kind)
    for unit in _units(model, classes, numel_over):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh)


def _units(model: Any, classes: Collection[str] | None, numel_over: int | None) -> list[torch.nn.Module]:
    """Return the units, what is within others first; what shares weights with others stays with the whole model."""
    uses = _uses(model)
    modules = [one for one in [*model.modules()][:0:-1] if _uses(one).items() <= uses.items()]
    if numel_over is not None:
        containers = (torch.nn.ModuleList, torch.nn.ModuleDict)  # which nobody calls
        large = [one for one in modules if sum(part.numel() for part in one.parameters()) > numel_over]
        return [one for one in large if not isinstance(one, containers)]
    names = set(getattr(model, "_no_split_modules", None) or () if classes is None else classes)
    units = [one for one in modules if type(one).__name__ in names]
    missing = names - {type(one).__name__ for one in units}
    if missing and classes is not None:
        raise ConfigError(
            f"fsdp_config['transformer_layer_cls_to_wrap'] has {', '.join(sorted(missing))}, and no module of "
            f"{type(model).__name__} is one\n"
            "  state  nothing was begun\n"
            "  next   the name of its layers' class, or leave it out: the model knows them"
        )
    return units


def _uses(module: torch.nn.Module) -> Counter[int]:
    """Count how often each parameter is used in a module."""
    return Counter(id(one) for _, one in module.named_parameters(remove_duplicate=False))

"""What a run of sharded models cannot carry, refused by name as it is constructed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from elastic.config.config import Config
from elastic.errors import ConfigError
from elastic.membership.environment import Launch
from elastic.state.sharding import local
from elastic.state.trained_set import hooks_of

_STATE = "  state  nothing was begun\n"
_TRIAL_ROWS, _TRIAL_STEPS = (13, 24), 3  # neither part fills vectors up


def check_sharding(config: Config, launch: Launch) -> None:
    """Raise ConfigError where models are sharded in a way, or beside something, that a run does not carry."""
    sharding = config.sharding
    if sharding is None:
        if launch.replica_size > 1:
            raise ConfigError(
                f"replicas are of {launch.replica_size} workers (--replica-size), and the model is not sharded\n"
                f"  found  each worker would train a whole model of its own\n{_STATE}"
                "  next   fully_shard(model, mesh=elastic.device_mesh()) before the Run; or leave --replica-size out"
            )
        return
    size = launch.replica_size if launch.channel is not None else launch.world_size
    if sharding.size != size:
        raise ConfigError(
            f"the model is sharded over {sharding.size} workers, and a replica is of {size}\n{_STATE}"
            "  next   shard it over mesh=elastic.device_mesh(), which is the replica's: under `elastic run` of\n"
            "         --replica-size, and under torchrun all workers are one replica"
        )
    for what, given, instead in (
        ("update=Update(scaler=...)", config.update.scaler is not None, "bfloat16 by MixedPrecisionPolicy needs none"),
        ("update=Update(rebuild=...)", config.update.rebuild is not None, "build all parameters before the Run"),
        ('data=Data(on_bad_example="skip")', config.data.on_bad_example == "skip", "read what can be read"),
    ):
        if given:
            raise ConfigError(f"{what} does not go with a sharded model\n{_STATE}  next   {instead}")
    parameters = config.parameters()
    hooked = [name for name, count in zip(parameters, hooks_of([*parameters.values()]), strict=True) if count]
    if hooked:
        raise ConfigError(
            f"hooks of gradients on sharded parameters: {', '.join(hooked[:8])}\n"
            f"  found  they would see a part, of one pass\n{_STATE}"
            "  next   run.on_apply(function) has the exact gradients"
        )
    for name, optimizer in config.optimizers.items():
        fused = any(group.get("fused") for group in optimizer.param_groups)
        if fused or not all(_is_the_same_cut(type(optimizer), group) for group in optimizer.param_groups):
            kind = f"a fused {type(optimizer).__name__}" if fused else f"{type(optimizer).__name__}"
            raise ConfigError(
                f"optimizer {name!r} is {kind}, whose bits depend on where a tensor is cut, or which fails on parts\n"
                f"{_STATE}  next   foreach=True, or for-loops, of an optimizer that works element by element"
            )


def _is_the_same_cut(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> bool:
    """Return whether an optimizer gives a matrix the same bits as it gives two parts of it. True: it cannot be tried.

    group  one of its own, by whose options it is tried
    """
    like = local(group["params"][0])
    options = {name: group[name] for name in inspect.signature(kind).parameters if name in group and name != "params"}

    def updated(parts: Sequence[int]) -> torch.Tensor:
        draw = torch.Generator().manual_seed(0)
        drawn = [torch.randn(sum(parts), 6, generator=draw).to(like) for _ in range(1 + _TRIAL_STEPS)]
        tried = [torch.nn.Parameter(part.clone()) for part in torch.split(drawn[0], list(parts))]
        optimizer = kind(tried, **copy.deepcopy(options))
        for gradients in drawn[1:]:
            for parameter, gradient in zip(tried, torch.split(gradients, list(parts)), strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        return torch.cat([parameter.detach() for parameter in tried])

    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        try:
            whole = updated([sum(_TRIAL_ROWS)])
        except Exception:  # one that takes other tensors than these, or a closure
            return True
        try:
            return torch.equal(whole, updated(_TRIAL_ROWS))
        except Exception:  # the script's own class, which may raise anything
            return False

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
_NOT_BY_ELEMENT = ("Adafactor", "Muon")
_ROUNDED_BY_PLACE = {"torch.bfloat16", "torch.float16"}
_TRIAL_ROWS, _TRIAL_COLUMNS = (13, 24), 6  # neither part fills vectors up
_TRIAL_STEPS, _TRIAL_RATE = 3, 0.01


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
        check_optimizer(name, optimizer)


def check_optimizer(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError for an optimizer of sharded parameters whose bits depend on where a tensor is cut.

    Those that are known are refused by name. Any other is tried on small tensors; what cannot be tried so is compared
    where a run goes on with another number of workers to a replica, as the step behind each save is.
    """
    groups = [group for group in optimizer.param_groups if group["params"]]
    kind = type(optimizer).__name__
    if fused := any(group.get("fused") for group in groups):
        kind = f"a fused {kind}"
    elif kind not in _NOT_BY_ELEMENT and all(_is_the_same_cut(type(optimizer), group) for group in groups):
        return
    types = {str(parameter.dtype) for group in groups for parameter in group["params"]} & _ROUNDED_BY_PLACE
    next_ = "foreach=True, or for-loops, of an optimizer that works element by element"
    if types and not fused and kind not in _NOT_BY_ELEMENT:  # a kernel rounds its vectors and what is left otherwise
        next_ = "keep parameters in float32, and compute in fewer bits by fully_shard's MixedPrecisionPolicy"
    of = f" of parameters in {', '.join(sorted(types))}" if types else ""
    raise ConfigError(
        f"optimizer {name!r} is {kind}{of}, whose bits depend on where a tensor is cut, or which fails on parts\n"
        f"{_STATE}  next   {next_}"
    )


def _is_the_same_cut(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> bool:
    """Return whether an optimizer gives tensors the same bits as it gives two parts of each; True: it cannot be tried.

    group  one of its own, by whose options it is tried on a matrix, a vector, or both, as its parameters are
    """
    like = local(group["params"][0])
    options = {name: group[name] for name in inspect.signature(kind).parameters if name in group and name != "params"}
    rate = options.get("lr")
    if isinstance(rate, torch.Tensor):
        options["lr"] = torch.full_like(rate, _TRIAL_RATE)
    elif rate is not None:  # a schedule may begin at 0, at which all are alike
        options["lr"] = _TRIAL_RATE

    def updated(shape: tuple[int, ...], parts: Sequence[int]) -> torch.Tensor:
        draw = torch.Generator().manual_seed(0)
        drawn = [torch.randn(sum(parts), *shape, generator=draw).to(like) for _ in range(1 + _TRIAL_STEPS)]
        tried = [torch.nn.Parameter(part.clone()) for part in torch.split(drawn[0], list(parts))]
        optimizer = kind(tried, **copy.deepcopy(options))
        for gradients in drawn[1:]:
            for parameter, gradient in zip(tried, torch.split(gradients, list(parts)), strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        return torch.cat([parameter.detach() for parameter in tried])

    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        for shape in {() if parameter.dim() < 2 else (_TRIAL_COLUMNS,) for parameter in group["params"]}:
            try:
                whole = updated(shape, [sum(_TRIAL_ROWS)])
            except Exception:  # one that takes other tensors than these, or a closure
                continue
            try:
                if not torch.equal(whole, updated(shape, _TRIAL_ROWS)):
                    return False
            except Exception:  # the script's own class, which may raise anything
                return False
    return True

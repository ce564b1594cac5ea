"""What a run of sharded models cannot carry, refused by name as it is constructed."""

from __future__ import annotations

from elastic.config.config import Config
from elastic.errors import ConfigError
from elastic.membership.environment import Launch
from elastic.state.trained_set import hooks_of

_STATE = "  state  nothing was begun\n"


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
        if fused or type(optimizer).__name__ in ("Adafactor", "Muon"):
            kind = f"a fused {type(optimizer).__name__}" if fused else f"{type(optimizer).__name__}"
            raise ConfigError(
                f"optimizer {name!r} is {kind}, whose bits depend on where a tensor is cut, or which fails on parts\n"
                f"{_STATE}  next   foreach=True, or for-loops, of an optimizer that works element by element"
            )

"""What frameworks ask of a model that a replica's workers hold together: its state whole, in and out.

All workers of a replica call what gathers together, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from elastic.state.sharding import is_sharded, is_unit, passed_by_all


def is_sharded_model(model: torch.nn.Module) -> bool:
    """Return whether fully_shard was called with the model, or with a part of it."""
    return any(map(is_unit, model.modules()))


@contextmanager
def passed_whole(model: torch.nn.Module) -> Iterator[None]:
    """Let a model be passed within this context, where each worker makes all passes, without backward passes."""
    try:
        with passed_by_all():
            yield
    finally:
        for module in model.modules():
            if is_unit(module):
                module.reshard()  # type: ignore[operator]  # an FSDPModule: its parameters are whole after such a pass


def whole_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return the model's state_dict; of a sharded one see `gathered`."""
    if not is_sharded_model(model):
        return model.state_dict()
    return gathered(model.state_dict(keep_vars=True))  # in which tied parameters are one object


@torch.no_grad()
def gathered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state_dict with whole tensors, on the CPU, to the first worker of a replica; to others an empty one.

    One without sharded tensors is returned to all as it is.
    """
    done: dict[int, Any] = {}
    keeps = True

    def whole(one: Any) -> Any:
        nonlocal keeps
        if isinstance(one, Mapping):
            return {key: whole(value) for key, value in one.items()}
        if isinstance(one, (list, tuple)):
            return type(one)(map(whole, one))
        if not isinstance(one, torch.Tensor):
            return one
        if id(one) not in done:
            if not is_sharded(one):
                done[id(one)] = one.detach()
            else:
                full: torch.Tensor = one.full_tensor()  # type: ignore[attr-defined]  # in which all take part
                keeps = one.device_mesh.get_local_rank() == 0  # type: ignore[attr-defined]
                done[id(one)] = full.cpu() if keeps else None
        return done[id(one)]

    made: dict[str, Any] = whole(state)
    return made if keeps else {}


@contextmanager
def loads_whole(model: torch.nn.Module) -> Iterator[None]:
    """Have the model's load_state_dict take whole tensors within this context; each worker keeps its part of them."""
    if not is_sharded_model(model):
        yield
        return
    from torch.distributed.tensor import distribute_tensor

    def cut(_: torch.nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for name, held in model.state_dict().items():
            given = state.get(prefix + name)
            if is_sharded(held) and given is not None and not is_sharded(given):
                # without a source rank each worker cuts what it was given, and nothing is sent
                state[prefix + name] = distribute_tensor(
                    given.to(held.device), held.device_mesh, held.placements, src_data_rank=None
                )

    hook = model.register_load_state_dict_pre_hook(cut)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hook.remove()

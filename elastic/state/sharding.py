"""A model that several workers hold together, sharded by torch's `fully_shard`: how it is found, and where it is cut.

Those workers are a replica: of one node, in a torch.distributed world of their own. What looks at the bytes of a state
looks at the part that this worker holds (`local`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from elastic.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
    from torch.distributed.tensor import DTensor

_by_all = 0
_NEXT = "  next   fully_shard(module, mesh=elastic.device_mesh()) for each unit, and for the whole model"


@dataclass(frozen=True, eq=False)
class Unit:
    """A module that `fully_shard` has made a unit: its parameters are gathered together, and their gradients cut.

    name        of the module, behind its model's
    module      as `fully_shard` has left it
    precision   that its passes and messages are in
    parameters  in the order in which they lie in the unit's messages
    holders     (module, name, parameter's number): where a forward pass finds each of them whole
    """

    name: str
    module: FSDPModule
    precision: MixedPrecisionPolicy
    parameters: tuple[DTensor, ...]
    holders: tuple[tuple[torch.nn.Module, str, int], ...]


@dataclass(frozen=True, eq=False)
class Sharding:
    """How the run's models are sharded over this worker's replica.

    mesh   over the replica, one-dimensional
    size   how many workers the replica has
    place  of this one among them
    """

    mesh: DeviceMesh
    units: tuple[Unit, ...]

    @property
    def size(self) -> int:
        return self.mesh.size()

    @property
    def place(self) -> int:
        return self.mesh.get_local_rank()

    def reshard(self) -> None:
        """Let go of parameters that a forward pass without a backward pass has left whole."""
        for unit in self.units:
            unit.module.reshard()


def sharding_of(models: Mapping[str, torch.nn.Module]) -> Sharding | None:
    """Return how these models are sharded; None: they are not. Raises ConfigError where a run cannot carry it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # a script that shards has imported it
    if fsdp is None:
        return None
    units, whole, known = list[Unit](), list[str](), set[int]()
    for key, model in models.items():
        modules = {name: module for name, module in model.named_modules() if isinstance(module, fsdp.FSDPModule)}
        for name, module in modules.items():
            unit = _unit(f"{key}.{name}".rstrip("."), module, modules.values())
            known.update(map(id, unit.parameters))
            if unit.parameters:  # a root of which all parts are units has none of its own
                units.append(unit)
        whole += [f"{key}.{name}" for name, one in model.named_parameters() if id(one) not in known]
    if not units:
        return None
    if whole:
        raise ConfigError(
            f"parameters that no unit of fully_shard holds: {', '.join(whole[:8])}\n"
            "  found  ignored_params, or a model of which only parts are sharded\n"
            f"  state  nothing was begun\n{_NEXT}"
        )
    return Sharding(_mesh_of(units), tuple(units))


def precisions_of(units: Iterable[Unit]) -> dict[str, dict[str, Any]]:
    """Return the policies that may round, as JSON: each with how many units have it, and a hash of which."""
    of: dict[str, list[str]] = {}
    for unit in units:
        own = {parameter.dtype for parameter in unit.parameters}
        given = {
            name: value
            for name, value in asdict(unit.precision).items()
            if isinstance(value, torch.dtype) and own != {value}
        }
        if given:
            casts = ", ".join(f"{name}={str(value).removeprefix('torch.')}" for name, value in sorted(given.items()))
            of.setdefault(f"{casts}, cast_forward_inputs={unit.precision.cast_forward_inputs}", []).append(unit.name)
    return {
        policy: {"units": len(names), "which": hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]}
        for policy, names in sorted(of.items())
    }


@contextmanager
def passed_by_all() -> Iterator[None]:
    """Let sharded models be passed within the block: the caller has all of a replica's workers make the same passes."""
    global _by_all
    _by_all += 1
    try:
        yield
    finally:
        _by_all -= 1


def is_passed_by_all() -> bool:
    """Return whether such a block is open."""
    return _by_all > 0


def is_unit(module: torch.nn.Module) -> bool:
    """Return whether fully_shard was called with this module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def local(tensor: Any) -> Any:
    """Return the part of a tensor that this worker holds, in the same memory; of what is not sharded, itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written; of a DTensor also by way of this worker's part, which counts apart."""
    part: torch.Tensor = local(tensor)
    return tensor._version + (part._version if part is not tensor else 0)


def cut_of(tensor: Any) -> list[Any] | None:
    """Return how a DTensor is cut, as JSON: (dimension, shape, strides) of the whole; None for any other tensor."""
    if not is_sharded(tensor):
        return None
    (placement,) = tensor.placements
    return [placement.dim, list(tensor.shape), list(tensor.stride())]


def whole_of(part: torch.Tensor, cut: list[Any] | None, sharding: Sharding | None) -> torch.Tensor:
    """Return a DTensor of which `part` is this worker's, cut as `cut_of` says; for None the part itself."""
    if cut is None:
        return part
    from torch.distributed.tensor import DTensor, Shard

    assert sharding is not None
    dimension, shape, stride = cut
    made: torch.Tensor = DTensor.from_local(
        part, sharding.mesh, [Shard(dimension)], run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )
    return made


def is_sharded(tensor: Any) -> bool:
    """Return whether this is a DTensor."""
    kind = sys.modules.get("torch.distributed.tensor")
    return kind is not None and isinstance(tensor, kind.DTensor)


def _unit(name: str, module: Any, units: Iterable[torch.nn.Module]) -> Unit:
    """Return the unit of this module: what hangs below it, but for what hangs below another unit."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    shard: Any = fully_shard
    state = shard.state(module)
    if any(isinstance(one.offload_policy, CPUOffloadPolicy) for one in getattr(state, "_fsdp_param_groups", ())):
        raise ConfigError(
            f"{name} is sharded with CPUOffloadPolicy, which a run does not carry\n"
            "  found  gradients on the CPU, of parameters that compute elsewhere\n"
            "  state  nothing was begun\n"
            "  next   leave offload_policy out; more workers in a replica need less memory each"
        )
    parameters: dict[int, tuple[int, Any]] = {}
    holders: list[tuple[torch.nn.Module, str, int]] = []
    for holder in _own_modules(module, {id(unit) for unit in units}):
        for part, parameter in holder._parameters.items():
            if parameter is None:
                continue
            if not is_sharded(parameter):
                raise ConfigError(
                    f"parameter {part} of a {type(holder).__name__} is in a unit of fully_shard, and not sharded\n"
                    "  found  ignored_params, or a forward pass that no backward pass has followed\n"
                    "  state  nothing was begun\n"
                    "  next   shard all of them; model.reshard() after such a forward pass"
                )
            number, _ = parameters.setdefault(id(parameter), (len(parameters), parameter))
            holders.append((holder, part, number))
    return Unit(
        name, module, state._mp_policy, tuple(parameter for _, parameter in parameters.values()), tuple(holders)
    )


def _own_modules(module: torch.nn.Module, units: set[int]) -> Iterator[torch.nn.Module]:
    """Yield a unit's modules in the order in which torch's fully_shard goes through them: children come first."""
    seen: set[int] = set()

    def walk(one: torch.nn.Module) -> Iterator[torch.nn.Module]:
        seen.add(id(one))
        for child in one.children():
            if id(child) not in units and id(child) not in seen:
                yield from walk(child)
        yield one

    yield from walk(module)


def _mesh_of(units: Iterable[Unit]) -> DeviceMesh:
    """Return the one mesh of all parameters. Raises ConfigError where there are others, or other placements."""
    from torch.distributed.tensor import Shard

    parameters = [parameter for unit in units for parameter in unit.parameters]
    mesh = parameters[0].device_mesh
    for parameter in parameters:
        placements = parameter.placements
        if parameter.device_mesh != mesh or len(placements) != 1 or not isinstance(placements[0], Shard):
            raise ConfigError(
                f"a parameter lies on {parameter.device_mesh} as {placements}, and a replica's model is sharded once, "
                "over all workers of the replica\n"
                "  found  tensor, expert, context or pipeline parallelism, or torch's own HSDP\n"
                f"  state  nothing was begun\n{_NEXT}"
            )
    return mesh

"""What torch's clipping does in a run: nothing where there are no gradients yet, and the exact norm of sharded ones.

Until a step's last share the gradients of a plain loop are None, and its own code clips all the same. torch 2.13 asks
its groups of tensors to be not empty there.

torch's norm of DTensors depends on where they are cut. That of a sharded run is exact_norm.py's, the same for a replica
of any size: whoever clips by torch.nn.utils, or asks it for a norm, gets that. `clip_grad_norm_` calls
`_get_total_norm` by its name, which is replaced; `get_total_norm` is what it wraps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad

from elastic.errors import StepError
from elastic.state.exact_norm import Pieces, norm
from elastic.state.sharding import is_sharded, local

_group = clip_grad._group_tensors_by_device_and_dtype
_total_norm = clip_grad._get_total_norm


def let_nothing_be_clipped() -> None:
    """Have `clip_grad_value_` pass over parameters without gradients from now on. May be called again."""
    clip_grad._group_tensors_by_device_and_dtype = _grouped  # type: ignore[assignment]


def carry_exact_norms() -> None:
    """Have torch.nn.utils give the exact norm of sharded gradients from now on. May be called again."""
    clip_grad._get_total_norm = _exact_or_torchs
    for module in (clip_grad, torch.nn.utils):
        module.get_total_norm = _exact_or_torchs  # type: ignore[attr-defined]


def exact_norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of sharded tensors, on one mesh, in fp64. All members call it together."""
    held = list(tensors)
    mesh: Any = held[0].device_mesh  # type: ignore[attr-defined]
    parts = [local(tensor) for tensor in held]
    pieces = Pieces(parts, parts[0].device)
    largest = pieces.largest()
    if mesh.size() > 1:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group())
    squares = pieces.squares(largest)
    if mesh.size() > 1:
        dist.all_reduce(squares, dist.ReduceOp.SUM, group=mesh.get_group())
    return norm(largest, squares)


def _exact_or_torchs(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    """Return the norm as torch.nn.utils.get_total_norm does; of sharded tensors the exact one. Raises StepError."""
    given: list[Any] = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not any(map(is_sharded, given)) or float(norm_type) == float("inf"):
        return _total_norm(given, norm_type, error_if_nonfinite, foreach)
    if not all(map(is_sharded, given)) or float(norm_type) != 2.0:
        found = f"norm_type={norm_type}" if all(map(is_sharded, given)) else "sharded tensors beside whole ones"
        raise StepError(
            f"a norm of sharded gradients was asked for with {found}, and its bits would depend on the replica's size\n"
            "  next   norm_type 2 or inf, of sharded gradients alone"
        )
    from torch.distributed.tensor import DTensor, Replicate

    found_norm = exact_norm(given)
    if error_if_nonfinite and not bool(torch.isfinite(found_norm)):
        raise RuntimeError(f"the total norm of order {norm_type} of the gradients is not finite: {float(found_norm)}")
    dtype = max((tensor.dtype for tensor in given), key=lambda one: one.itemsize)
    mesh: Any = given[0].device_mesh
    made: torch.Tensor = DTensor.from_local(found_norm.to(dtype), mesh, [Replicate()], run_check=False)
    return made


def _grouped(lists: list[list[Any]], *args: Any, **named: Any) -> Any:
    return _group(lists, *args, **named) if any(lists) else {}

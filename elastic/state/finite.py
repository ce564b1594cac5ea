"""Are these tensors finite numbers, and how large are they together? Each is read once, in half of a copy's time.

Of a state the weights are asked before it is saved: the parameters of the models. Buffers may hold infinities on
purpose (masks), and what an optimizer keeps follows from gradients that were finite. Of what is sharded each worker
looks at its own part, and asks the others of its replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from elastic.state.sharding import local


def norm(tensors: Sequence[torch.Tensor]) -> float:
    """Return the Euclidean norm of all together, 0.0 of none, and inf where a square is beyond fp32.

    It has the same bits wherever the tensors, in this order, have the same ones and the machines are alike.
    Clipping needs that, too.
    """
    return norm_later(tensors)()


def norm_later(tensors: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Return a function that gives the norm of the present values; on a GPU, its caller waits for it."""
    norms = _norms([local(tensor) for tensor in tensors])
    return lambda: math.hypot(*map(float, norms))


def not_finite(parameters: Mapping[str, torch.Tensor], any_mate: Callable[[bool], bool]) -> str | None:
    """Return the first parameter with an infinity or NaN, and how many of its numbers are so; None: all are finite.

    any_mate  see Session.any_mate: none of a replica's workers finds them finite unless all do
    """
    found = _first_of(parameters)
    if any_mate(found is not None):
        return found or "a part of the weights that another worker of the replica holds"
    return found


def _first_of(parameters: Mapping[str, torch.Tensor]) -> str | None:
    asked = {name: local(tensor).detach() for name, tensor in parameters.items() if tensor.is_floating_point()}
    if math.isfinite(norm([*asked.values()])):
        return None
    for name, tensor in asked.items():
        if missing := int((~torch.isfinite(tensor)).sum()):
            return f"{name} ({missing:,} of {tensor.numel():,} numbers)"
    return None  # a norm was too large for its type


def _norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return one norm for each row of neighbours of one dtype and device; that of 16-bit numbers in fp32."""
    found: list[torch.Tensor] = []
    with torch.no_grad():
        for same in _neighbours(tensors):
            if same[0].dtype.itemsize < 4:
                halves = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in same]
                found.append(torch.linalg.vector_norm(torch.stack(halves)))
            else:
                found.append(torch.nn.utils.get_total_norm(same))
    return found


def _neighbours(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group the tensors of one dtype and device that follow each other."""
    groups: list[list[torch.Tensor]] = []
    for tensor in tensors:
        if groups and (groups[-1][0].dtype, groups[-1][0].device) == (tensor.dtype, tensor.device):
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
    return groups

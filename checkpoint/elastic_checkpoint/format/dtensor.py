"""One rank's part of a DTensor: which box of the whole it is, and how such a part becomes a DTensor again."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from elastic_checkpoint.format.shards import Box


def local_box(tensor: Any) -> Box:
    """Offsets and sizes of this rank's part, as torch's planner sees it. Sizes may be 0."""
    (chunk,) = tensor.__create_chunk_list__()
    sizes = tuple(chunk.sizes)
    return tuple(min(o, w - s) for o, s, w in zip(chunk.offsets, sizes, tensor.shape, strict=True)), sizes


def local_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor, all of any other tensor; it shares memory with it."""
    part: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def like(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    """A DTensor with the placements and the shape of `tensor`, of which `local` is this rank's part."""
    made: torch.Tensor = DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim())),
    )
    return made

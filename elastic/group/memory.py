"""Memory for large tensors that are new: gradients' sums in each view, the state of one that joins."""

from __future__ import annotations

import torch

from checkpoint.memory import in_huge_pages

_LARGE_BYTES = 8 << 20  # from here on it takes longer to get the memory page by page than to write to it


def empty(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As torch.empty, in one dimension."""
    nbytes = numel * dtype.itemsize
    if device.type != "cpu" or nbytes < _LARGE_BYTES:
        return torch.empty(numel, dtype=dtype, device=device)
    return torch.frombuffer(in_huge_pages(nbytes), dtype=torch.uint8).view(dtype)

"""Memory for large tensors that are new: gradients' sums in each view, the state of one that joins."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from checkpoint.memory import prefer_huge_pages

_LARGE_BYTES = 8 << 20  # from here on it takes longer to get the memory page by page than to write to it


def empty(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """As torch.empty. strides: of a tensor without gaps"""
    if strides is None:
        made = torch.empty(shape, dtype=dtype, device=device)
    else:
        made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if device.type == "cpu" and made.nbytes >= _LARGE_BYTES:
        prefer_huge_pages(made.data_ptr(), made.nbytes)
    return made

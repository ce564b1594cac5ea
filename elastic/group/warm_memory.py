"""Memory of sums, handed on from view to view.

The kernel gives new memory page by page. For the sums of a large model that takes longer than to send them, on every
worker that stays when another one joins.
"""

from __future__ import annotations

import torch

_SPARE = 1 << 12  # elements: sums are padded by world size, and may be a little longer in the next view


class WarmMemory:
    """Memory that the sums of a view left in order let go, for those of the next one.

    Not what a group that broke had in flight: its threads may write there still.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._free)

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for at least so many elements, in one dimension, of any values."""
        fits = [
            (len(block), index)
            for index, block in enumerate(self._free)
            if block.dtype == dtype and block.device == device and numel <= len(block) <= 2 * numel
        ]
        if fits:
            return self._free.pop(min(fits)[1])
        return torch.empty(numel + (_SPARE if numel > _SPARE else 0), dtype=dtype, device=device)

    def give_back(self, blocks: list[torch.Tensor]) -> None:
        """Take back blocks that nobody uses any more."""
        self._free += blocks

    def forget(self) -> None:
        """Give back to the system what nobody has taken."""
        self._free = []

"""How a buffer's value lies, and how it is compared, summed and sent: by its bits, whatever its dtype."""

from __future__ import annotations

from typing import NamedTuple

import torch

from elastic_checkpoint.format.dtypes import name_of


class Layout(NamedTuple):
    """The dtype and shape of a buffer; dtype None: there is none."""

    dtype: str | None
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: torch.Tensor | None) -> Layout:
        return cls(None) if value is None else cls(name_of(value.dtype), tuple(value.shape))

    def __str__(self) -> str:
        return "nothing" if self.dtype is None else f"{self.dtype}{list(self.shape)}"

    def empty(self, device: torch.device) -> torch.Tensor | None:
        return None if self.dtype is None else torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=device)


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether two values are equal to the bit, but for the sign of zero; a NaN equals one of the same bits."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return one is other
    if torch.equal(one, other):
        return True
    may_be_nan = one.is_floating_point() or one.is_complex()
    return may_be_nan and torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(value: torch.Tensor) -> torch.Tensor:
    """Return a value's bytes, flat: a view of its memory where it is contiguous."""
    return value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def as_floats(value: torch.Tensor) -> torch.Tensor:
    """Return a value as flat floats, of which a complex number has two."""
    return (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).reshape(-1)


def floats_in(layout: Layout) -> int:
    """Return how many floats `as_floats` makes of such a value."""
    numel = torch.Size(layout.shape).numel()
    return 2 * numel if layout.dtype is not None and getattr(torch, layout.dtype).is_complex else numel


def shaped(value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a value, or the flat floats of one, in the shape of a layout."""
    if layout.dtype is not None and getattr(torch, layout.dtype).is_complex and not value.is_complex():
        return torch.view_as_complex(value.view(*layout.shape, 2))
    return value.view(layout.shape)

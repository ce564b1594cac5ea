"""The 2-norm of what several members hold in pieces: the same bits wherever it is cut, and in whatever order.

    pieces = Pieces(tensors, device)          on each member, what it holds of all; or nothing
    largest = pieces.largest()                then the maximum over all members
    squares = pieces.squares(largest)         then the sum over all members
    norm(largest, squares)

Each square is rounded to a multiple of one power of two, which follows from the largest element of all; such multiples
are added as integers, which no order changes (Demmel and Nguyen 2015, doi:10.1109/TC.2014.2345391). It is rounded by at
most 2**-45 of the largest square, where fp32 sums lose what is below 2**-24 of themselves. Nothing here depends on the
processor, its threads or the device, and no GPU is waited for.

Two exchanges of some bytes are cheaper than one: a member that does not know the others' largest element would have to
round to two powers, which took 1.4 times as long (2.7 M elements, 2026-11-29).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

_DIGITS = 46  # bits of a rounded square: the sum of a row of them has no more than 61
_ROW = 1 << 15  # elements
_ROWS_CPU, _ROWS_GPU = 4, 128  # at a time: few calls, and a CPU finds its numbers in a cache
_SMALL = 1 << 12  # elements; some calls for each such tensor cost more than one copy of them all
_EXPONENTS = (-480, 500)  # of fp64, so that what a square is added to has one, too; fp32 needs -148 to 128
_LOW = (1 << 32) - 1


class Pieces:
    """What one member holds, as far as floating-point numbers go; they must not change until `squares` is back."""

    def __init__(self, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
        self._device = device
        real = (torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in tensors)
        flat = [one.detach().reshape(-1) for one in real if one.numel()]
        small = [one for one in flat if one.numel() < _SMALL]
        self._flat = [one for one in flat if one.numel() >= _SMALL]
        if small:
            self._flat.append(torch.cat(small))

    @torch.no_grad()
    def largest(self) -> torch.Tensor:
        """Return the largest absolute value, as the bits of an fp64 number, in an int64 of one element.

        Their order is that of the numbers, and what is not a number comes last.
        """
        ends = [end for one in self._flat for end in torch.aminmax(one)]
        if not ends:
            return torch.zeros(1, dtype=torch.int64, device=self._device)
        return (torch.stack(ends).double().view(torch.int64) & ((1 << 63) - 1)).amax(0, keepdim=True)

    @torch.no_grad()
    def squares(self, largest: torch.Tensor) -> torch.Tensor:
        """Return the sum of all squares as two int64, of which the first counts 2**32 times; for `norm` alone.

        largest  of all members
        """
        # To add a square to a number whose last bit is worth one unit rounds the square, and shows it in the last bits.
        bits = (2 * _exponent(largest) - _DIGITS + 52 + 1023 << 52) + (1 << 51)
        zero = bits.view(torch.float64)
        rows = max(_ROWS_CPU, torch.get_num_threads()) if self._device.type == "cpu" else _ROWS_GPU
        rows = min(rows, -(-sum(one.numel() for one in self._flat) // _ROW))
        chunk = torch.empty(rows * _ROW, dtype=torch.float64, device=self._device)
        wide = any(one.dtype is torch.float64 for one in self._flat)
        of_rows = [bits[:0]]
        for _ in _filled(chunk, self._flat):
            if wide:
                chunk.square_().add_(zero)  # apart, since a fused operation would not round the square itself
            else:
                torch.addcmul(zero, chunk, chunk, out=chunk)  # of all other types it is exact in fp64
            of_rows.append(chunk.view(torch.int64).view(rows, _ROW).sum(1))  # modulo 2**64
        sums = torch.cat(of_rows) - _ROW * bits
        return torch.stack([(sums >> 32).sum(), (sums & _LOW).sum()])


def norm(largest: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm, in fp64: not a number if an element is, else infinite if one is.

    largest  the maximum over all members; elements of fp64 count as infinite from 2**500 on
    squares  the sum over all members
    """
    high, low = squares.double()
    unit = (_exponent(largest) - _DIGITS // 2 + 1023 << 52).view(torch.float64)
    found = (high * 2.0**32 + low).sqrt() * unit
    value = largest.view(torch.float64)
    return torch.where(value < 2.0 ** _EXPONENTS[1], found, value * math.inf)[0]


def _exponent(largest: torch.Tensor) -> torch.Tensor:
    """Return the exponent of the next power of two, with which no fp64 number in use here is too small or too large."""
    return ((largest >> 52) - 1022).clamp(*_EXPONENTS)


def _filled(chunk: torch.Tensor, flat: Iterable[torch.Tensor]) -> Iterator[None]:
    """Fill the chunk with the elements of all tensors, as many times as it takes; what is left of the last is zeros."""
    filled = 0
    for tensor in flat:
        taken = 0
        while taken < tensor.numel():
            here = tensor[taken : taken + chunk.numel() - filled]
            chunk[filled : filled + here.numel()].copy_(here)
            taken += here.numel()
            filled += here.numel()
            if filled == chunk.numel():
                yield
                filled = 0
    if filled:
        chunk[filled:].zero_()
        yield

"""Where does each parameter's gradient lie in the buckets that travel? Fixed for the run. Pure but for devices.

Buckets hold parameters in reverse order of registration, which is about the order in which a backward
pass finishes them, so that the first bucket can leave while the rest is still computed. Spans start on
64-byte boundaries, as fresh tensors do: kernels see the same alignment at every world size. Behind the
spans stands one element per parameter that says whether a share gave it a gradient: 1 or 0 in a row, summed
with the gradients, which tells "no share used it" (`.grad` stays None) from a gradient of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_ALIGNED = 16  # elements
_SMALL, _SMALL_TOGETHER = 1 << 16, 1 << 20  # elements


@dataclass(frozen=True)
class Span:
    """Where a parameter's gradient lies in its bucket.

    parameter  index in the run's parameter list; offset, numel in elements of the bucket
    """

    parameter: int
    offset: int
    numel: int


@dataclass(frozen=True)
class Bucket:
    """A flat tensor of gradients that travel together, of one dtype and device.

    numel  spans, padding and the counts (one element per span, from `counts_at` on)
    """

    spans: tuple[Span, ...]
    counts_at: int
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> int:
        return self.counts_at + len(self.spans)


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the gradients of these parameters lie.

    bucket_of     per parameter, the number of its bucket
    dtypes        per parameter, of its sums; alike: they are the parameters' own
    small, large  the parameters whose gradients wait for the end of a backward pass, and the others
    every         a byte of 1 for each parameter
    """

    parameters: tuple[torch.nn.Parameter, ...]
    names: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    bucket_of: dict[int, int]
    dtypes: tuple[torch.dtype, ...]
    alike: bool
    small: frozenset[int]
    large: tuple[int, ...]
    every: bytes

    @classmethod
    def of(cls, parameters: Sequence[torch.nn.Parameter], names: Sequence[str], bucket_bytes: int) -> Layout:
        """Return the layout of these parameters."""
        numbers, every = range(len(parameters)), buckets(parameters, bucket_bytes)
        dtypes = tuple(summed_in(parameter.dtype) for parameter in parameters)
        small = _small([parameter.numel() for parameter in parameters])
        return cls(
            tuple(parameters),
            tuple(names),
            every,
            {span.parameter: number for number, bucket in enumerate(every) for span in bucket.spans},
            dtypes,
            all(dtype == parameter.dtype for dtype, parameter in zip(dtypes, parameters, strict=True)),
            small,
            tuple(number for number in numbers if number not in small),
            b"\1" * len(parameters),
        )

    def sums_in(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each parameter's span of these flat tensors, one a bucket, as a tensor with the parameter's shape."""
        sums = {
            span.parameter: self._sum_in(flat, span)
            for bucket, flat in zip(self.buckets, flats, strict=True)
            for span in bucket.spans
        }
        return [sums[number] for number in range(len(self.parameters))]

    def _sum_in(self, flat: torch.Tensor, span: Span) -> torch.Tensor:
        """Return a span with the parameter's shape, and its strides if it is dense: as autograd lays gradients out."""
        parameter = self.parameters[span.parameter]
        if dense(parameter):
            return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset() + span.offset)
        return flat[span.offset : span.offset + span.numel].view(parameter.shape)


def _small(numels: Sequence[int]) -> frozenset[int]:
    """Return the parameters whose gradients wait for the end of the pass.

    They have so few elements that Python would take longer than the sum does, and together so few that they are still
    in the cache.
    """
    small: set[int] = set()
    together = 0
    for numel, index in sorted((numel, index) for index, numel in enumerate(numels)):
        together += numel
        if numel > _SMALL or together > _SMALL_TOGETHER:
            break
        small.add(index)
    return frozenset(small)


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a parameter's sums: gradients of 16 bits are added and sent in fp32, and cast once."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def buckets(parameters: Sequence[torch.Tensor], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Return buckets of about `bucket_bytes` over `parameters`; one that is larger has a bucket of its own."""
    made: list[Bucket] = []
    spans: list[Span] = []
    size = 0

    def close() -> None:
        nonlocal spans, size
        if spans:
            first = parameters[spans[0].parameter]
            made.append(Bucket(tuple(spans), size, summed_in(first.dtype), first.device))
        spans, size = [], 0

    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        dtype = summed_in(parameter.dtype)
        room = -(-parameter.numel() // _ALIGNED) * _ALIGNED
        if spans:
            before = parameters[spans[-1].parameter]
            other_kind = (summed_in(before.dtype), before.device) != (dtype, parameter.device)
            if other_kind or (size + room) * dtype.itemsize > bucket_bytes:
                close()
        spans.append(Span(index, size, parameter.numel()))
        size += room
    close()
    return tuple(made)


def dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory without gap or overlap, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True

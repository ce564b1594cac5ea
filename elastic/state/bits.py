"""Digests of tensors, by their bits: what is equal has the same, on one device and in one layout of its elements.

On the CPU they are xxh3 of the memory. On other devices a sum of each tensor's bits is made there, and one small copy
of all sums is waited for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch
import xxhash

from elastic.state.sharding import local

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def memory(tensor: torch.Tensor, start: int = 0, stop: int | None = None) -> Any:
    """Return a view of these bytes of a contiguous tensor on the CPU; empty where its storage was freed."""
    stop = tensor.nbytes if stop is None else stop
    at = tensor.storage_offset() * tensor.element_size() + start
    if stop <= start or at + stop - start > tensor.untyped_storage().nbytes():
        return b""
    # numpy() would do, but torch refuses ever to resize a tensor whose memory numpy has seen
    return (ctypes.c_char * (stop - start)).from_address(tensor.data_ptr() + start)


def update(hasher: Any, tensor: torch.Tensor) -> None:
    """Feed the bytes of a readable tensor on the CPU to `hasher`, in the order of its elements, whatever its layout."""
    held = tensor.detach().resolve_conj().resolve_neg().contiguous()  # as long as its memory is looked at
    hasher.update(memory(held))


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of all elements' bits, modulo 2**64, on the tensor's device: it does not see their order."""
    if tensor.layout is not torch.strided:
        return torch.zeros((), dtype=torch.int64)  # which is refused elsewhere
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return flat.detach().contiguous().view(_BITS[flat.element_size()]).sum(dtype=torch.int64)


def digest_of(tensors: Iterable[torch.Tensor | None]) -> int:
    """Return 63 bits of all tensors in their order, never 0; that there is None in a place counts, too.

    Of what is sharded this worker's part counts.
    """
    hasher, sums = xxhash.xxh3_64(), []
    for whole in tensors:
        tensor = local(whole)
        hasher.update(b"-" if tensor is None else b"+")
        if tensor is None:
            continue
        if tensor.is_cpu and tensor.layout is torch.strided:
            update(hasher, tensor)
        else:
            sums.append(sum_of_bits(tensor))
    if sums:
        hasher.update(repr(torch.stack(sums).tolist()).encode())
    return hasher.intdigest() >> 1 or 1

"""Digests of tensors, by their bits: what is equal has the same, on one device and in one layout of its elements.

On the CPU they are xxh3 of the memory. On other devices a sum of each tensor's bits is made there, and one small copy
of all sums is waited for.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping, Sequence
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


def digest_of(tensors: Iterable[torch.Tensor | None], prefixes: list[int] | None = None) -> int:
    """Return 63 bits of all tensors in their order, never 0; that there is None in a place counts, too.

    Of what is sharded this worker's part counts.

    prefixes  takes for each tensor a digest of it and of those before it: the first that differs tells which one does
    """
    hasher, sums = xxhash.xxh3_64(), dict[int, torch.Tensor]()
    cut = list[int]()
    for at, whole in enumerate(tensors):
        tensor = local(whole)
        hasher.update(b"-" if tensor is None else b"+")
        if tensor is not None and tensor.is_cpu and tensor.layout is torch.strided:
            update(hasher, tensor)
        elif tensor is not None:
            sums[at] = sum_of_bits(tensor)
        cut.append(hasher.intdigest())
    if sums:
        found = torch.stack([*sums.values()]).tolist()
        hasher.update(repr(found).encode())
        cut = _with_sums(cut, dict(zip(sums, found, strict=True)))
    if prefixes is not None:
        prefixes += cut
    return hasher.intdigest() >> 1 or 1


def prefixes_of_sums(sums: Sequence[int]) -> list[int]:
    """Return what digest_of's prefixes are for, of tensors whose sums of bits these are."""
    return _with_sums([0] * len(sums), dict(enumerate(sums)))


def _with_sums(prefixes: Sequence[int], sums: Mapping[int, int]) -> list[int]:
    """Return prefixes that also tell of the tensors of which there are sums alone, by their places."""
    hasher, found = xxhash.xxh3_64(), []
    for at, prefix in enumerate(prefixes):
        if at in sums:
            hasher.update(struct.pack("<q", sums[at]))
        found.append(prefix ^ hasher.intdigest())
    return found

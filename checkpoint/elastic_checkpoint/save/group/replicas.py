"""Is what the ranks hold alike the same, to the bit? Each hashes all of it; the hashes are compared.

Exact, so every byte is read on every rank: 33 GB/s a thread where memory gives as much, several threads at a time. On a
GPU the hash is made there, and 16 bytes travel. Neither is stored: they need to be equal on the ranks of one job only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import xxhash

from elastic_checkpoint.format.document import is_dense
from elastic_checkpoint.format.hashing import xxh3
from elastic_checkpoint.format.tensors import flat_bytes
from elastic_checkpoint.storage import Buffer

_THREADS_MAX = 4  # as for the copy: more read no faster than memory gives
_UNIT_BYTES = 2**26  # what one thread hashes in one go; part of the hash's definition
_WORTH_THREADS_BYTES = 2**24

_ON_DEVICE_WORDS = 2**24  # of 8 bytes; a few times as much is needed beside the state
_K1, _K2, _K3 = -0x61C8864680B583EB, -0x3D4D51C2D82B14B1, 0x165667B19E3779F9  # odd, of xxHash
_WORD = 8


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Return one hash of all of these tensors' bytes, whatever the order of their names here."""
    ordered = [tensors[name] for name in sorted(tensors)]
    on_host = _of_buffers(_buffer(tensor) for tensor in ordered if tensor.is_cpu)
    on_devices = [_on_device([t for t in ordered if t.device == device]) for device in _devices(ordered)]
    return xxh3(repr([on_host, *on_devices]).encode("ascii"))


def each(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return a hash of each, by its name."""
    return {name: digest({name: tensor}) for name, tensor in tensors.items()}


def _devices(tensors: list[torch.Tensor]) -> list[torch.device]:
    return sorted({tensor.device for tensor in tensors if not tensor.is_cpu}, key=str)


def _buffer(tensor: torch.Tensor) -> Buffer:
    """Return the tensor's memory, with its axes as they lie there: the document of the state holds their order."""
    if not tensor.numel():
        return b""
    dense = tensor.is_contiguous() or is_dense(tuple(tensor.shape), tensor.stride())
    if dense and not tensor.is_conj() and not tensor.is_neg():
        return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))
    return flat_bytes(tensor)


def _of_buffers(buffers: Iterable[Buffer]) -> list[str]:
    units = list(_units(buffers))
    total = sum(len(part) for unit in units for part in unit)
    threads = max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)) // 2))
    if threads == 1 or total < _WORTH_THREADS_BYTES:
        return [_hash(unit) for unit in units]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_hash, units))


def _units(buffers: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    """Yield runs of buffers, or of parts of one, such that each has at most _UNIT_BYTES."""
    unit: list[Buffer] = []
    room = _UNIT_BYTES
    for buffer in buffers:
        at = 0
        while len(buffer) - at > room:
            unit.append(memoryview(buffer)[at : at + room])
            at += room
            yield unit
            unit, room = [], _UNIT_BYTES
        unit.append(memoryview(buffer)[at:] if at else buffer)
        room -= len(buffer) - at
    yield unit


def _hash(unit: list[Buffer]) -> str:
    state = xxhash.xxh3_128()
    for part in unit:
        state.update(part)  # without the interpreter's lock, where it is large
    return state.hexdigest()


def _on_device(tensors: list[torch.Tensor]) -> list[int]:
    """Return two sums over all words of 8 bytes, each word mixed with its position. Small tensors are joined first."""
    sums = torch.zeros(2, dtype=torch.int64, device=tensors[0].device)
    begins = 0
    for flat in _joined(tensors):
        words = torch.nn.functional.pad(flat, (0, -flat.numel() % _WORD)).view(torch.int64)
        for part in torch.split(words, _ON_DEVICE_WORDS):
            sums += _mixed(part, begins)
            begins += part.numel()
    return [int(one) for one in sums.tolist()]


def _joined(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield flat bytes, in pieces of a fair size."""
    batch: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        batch.append(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8))
        size += plain.nbytes
        if size >= _UNIT_BYTES:
            yield torch.cat(batch) if len(batch) > 1 else batch[0]
            batch, size = [], 0
    if batch:
        yield torch.cat(batch)


def _mixed(words: torch.Tensor, begins: int) -> torch.Tensor:
    """Return integers that wrap around: the same on every device, and in every order of adding."""
    positions = torch.arange(begins, begins + words.numel(), dtype=torch.int64, device=words.device).mul_(_K1)
    mixed = positions ^ (positions >> 31)
    mixed.bitwise_xor_(words).mul_(_K2)
    mixed.bitwise_xor_(mixed >> 29).mul_(_K3)
    mixed.bitwise_xor_(mixed >> 32)
    return torch.stack([mixed.sum(), mixed.mul_(positions.bitwise_or_(1)).sum()])

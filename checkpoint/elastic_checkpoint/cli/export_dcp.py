"""torch's save planner over tensors that are read when they are written: DCP's format without the state in memory."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex

from elastic_checkpoint.format.dtypes import StoredDtype
from elastic_checkpoint.format.leaves import Array
from elastic_checkpoint.format.tensors import torch_dtype
from elastic_checkpoint.load.stream import Stream

_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 2**17


class Lazily(DefaultSavePlanner):
    """Plans with tensors without data; gets the data of each one from `stream` when it is asked for it.

    torch's writer asks for one after the other has been written, as long as it copies none ahead, but holds on to all
    of them until the file is complete (filesystem.py, `tensor_dict`, torch 2.13): so each one's memory is taken back
    when the next is asked for.

    empty  name in the manifest -> the tensor to plan with
    """

    def __init__(self, stream: Stream, tensors: dict[str, Array]) -> None:
        super().__init__()
        _give_back_what_is_freed()
        self._stream = stream
        self.empty: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._written: torch.Tensor | None = None
        for name, leaf in tensors.items():
            assert isinstance(leaf.dtype, StoredDtype)
            self.empty[name] = torch.empty(leaf.shape, dtype=torch_dtype(leaf.dtype), device="meta")
            self._names[id(self.empty[name])] = name

    def lookup_object(self, index: MetadataIndex) -> Any:
        found = super().lookup_object(index)
        if id(found) not in self._names:
            return found
        if self._written is not None:
            self._written.untyped_storage().resize_(0)
        data = self._stream.read(self._names[id(found)])
        self._written = torch.empty(len(data), dtype=torch.uint8)
        # Seen by NumPy it could not be resized, and torch's own copy would join threads for each tensor.
        ctypes.memmove(self._written.data_ptr(), data.ctypes.data, len(data))
        return self._written.view(found.dtype).view(found.shape)


def _give_back_what_is_freed() -> None:
    """Have glibc map each large block by itself, and unmap it when it is freed.

    It puts ever larger blocks into its heap once it has seen some come and go; between what torch keeps for each
    tensor, a third of a state of 1 GiB stayed there as holes (2026-11).
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)

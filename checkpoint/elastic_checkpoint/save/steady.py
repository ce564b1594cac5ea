"""Which tensors of a save may be copied while training goes on, and have they stayed as they were until then?

The caller promises it of some. A write is noticed all the same, by the tensor's version: then the save is dropped, for
nobody knows which of the values were copied. A version is counted after the values are written. So it is looked at by
the thread that writes them, when it is between two operations, and not by the one that copies.

What a fused optimizer writes counts no version, nor what is written through `.data`, a numpy() view or another
library's kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from elastic_checkpoint.errors import StateChanged
from elastic_checkpoint.save.copying import Copying
from elastic_checkpoint.save.handle import Saving
from elastic_checkpoint.save.planner import Save
from elastic_checkpoint.save.ranks import Context

_SMALL_BYTES = 2**16  # copied in less time than it takes to come back to it
_WORTH_BYTES = 2**23  # a millisecond's copying

Versions = Mapping[str, tuple[int, int]]  # and where the values lie: share_memory_() moves them, and counts nothing


def versions_of(tensors: Mapping[str, torch.Tensor], steady: Iterable[torch.Tensor]) -> Versions:
    """The versions of those that may be copied later, by name: the large ones in the memory of `steady`. None where
    they are not worth a thread."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in steady}
    found = {
        name: (tensor._version, tensor.data_ptr())
        for name, tensor in tensors.items()
        if tensor.nbytes >= _SMALL_BYTES
        and not tensor.is_inference()  # counts no versions
        and not (tensor.is_conj() or tensor.is_neg())  # copied by way of another one
        and tensor.untyped_storage().data_ptr() in memory
    }
    return found if sum(tensors[name].nbytes for name in found) >= _WORTH_BYTES else {}


@dataclass(eq=False)
class Filling:
    """A half of the arena that is being filled. versions: of the tensors that are copied now, when the save began"""

    half: int
    save: Save
    saving: Saving
    context: Context
    copying: Copying
    versions: Versions

    def written(self) -> tuple[str, ...]:
        """Those that have been written to since the save began."""
        tensors = self.save.tensors
        now = {name: (tensors[name]._version, tensors[name].data_ptr()) for name in self.versions}
        return tuple(name for name, version in self.versions.items() if now[name] != version)


def changed(step: int, tensors: tuple[str, ...]) -> StateChanged:
    named = ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
    return StateChanged(
        f"step {step} was not saved: {named} changed while the state was being copied\n"
        "  found  they were promised to stay as they are until the handle's staged() returns\n"
        "  state  nothing of it was committed; the previous checkpoint stays the newest\n"
        "  next   save again, without that promise; or call staged() before what writes to them",
        step=step,
        tensors=tensors,
    )

"""The error for an object whose bytes are not those that were written: names it, its step and its tensors."""

from __future__ import annotations

from checkpoint.errors import CorruptCheckpoint
from checkpoint.format.manifest import Manifest


def damaged(manifest: Manifest, index: int, what: str, *, chunk: int | None = None) -> CorruptCheckpoint:
    """what  is wrong with object `index`, or with this hash chunk of it: "is absent", "has ..." """
    tensors, key = manifest.tensors_in(index), manifest.id.shard_key(index)
    shown = ", ".join(tensors[:5]) + (f" and {len(tensors) - 5} more" if len(tensors) > 5 else "")
    where = f"object {index} of {len(manifest.objects)}" + (f", chunk {chunk}" if chunk is not None else "")
    return CorruptCheckpoint(
        f"checkpoint step {manifest.id.step}, {where} (counting from 0) {what}\n"
        f"  object   {key}\n  tensors  {shown or 'none'}\n  state    nothing was loaded",
        commit=str(manifest.id),
        key=key,
        tensors=tensors,
    )

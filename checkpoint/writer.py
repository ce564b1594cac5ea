"""Makes a state a commit: data first, counted, then one small manifest.

    encode  ->  shards, one at a time, each hashed  ->  count them  ->  look again  ->  manifest, create-if-absent

A crash at any arrow leaves data that no manifest names, for sweep to remove: the previous checkpoint stays newest. A
newer claim that is taken between the last look and the manifest resumed from an older commit, so this one, though
committed, is outside its lineage and never chosen.
"""

from __future__ import annotations

from typing import Any

from checkpoint import manifest
from checkpoint.errors import CheckpointError, ClaimLost, StorageError
from checkpoint.hashing import CHUNK_BYTES, chunk_hashes, xxh3
from checkpoint.history import look_again
from checkpoint.manifest import Commit, StoredObject
from checkpoint.names import STEP_MAX, CommitId, new_nonce
from checkpoint.shards import pack, plan_shards
from checkpoint.storage import AlreadyThere, Storage
from checkpoint.tree import Tree, encode


def write(
    storage: Storage,
    *,
    claim: int,
    claim_nonce: str,
    resumed_from: CommitId | None,
    step: int,
    state: Tree,
    meta: dict[str, Any],
    shard_bytes: int,
    now_s: float,
) -> Commit:
    """Saves `state` under `claim` and returns when it is durable.

    memory  one shard beside the state; nothing else is copied, on whatever device it lies
    raises  UnsupportedValue before anything is written; ClaimLost, StorageError with nothing committed
    """
    if type(step) is not int or not 0 <= step < STEP_MAX:
        raise CheckpointError(f"step {step!r} is not an int from 0 to {STEP_MAX:,}; nothing was saved")
    document, tensors = encode(state)
    meta_document, meta_tensors = encode(meta)
    if type(meta) is not dict or meta_tensors:
        raise CheckpointError(
            f"meta must be a dict of plain values, found tensors: {', '.join(meta_tensors) or meta!r}"
        )

    id = CommitId(claim, step, new_nonce(now_s))
    shards = plan_shards(tensors, shard_bytes)
    objects = []
    buffer = bytearray(max((shard.size for shard in shards), default=0))
    for index, shard in enumerate(shards):
        file = pack(shard, tensors, buffer)
        objects.append(StoredObject(len(file), xxh3(file), CHUNK_BYTES, tuple(chunk_hashes(file))))
        storage.put(id.shard_key(index), file)

    planned = {id.shard_key(index): stored.size for index, stored in enumerate(objects)}
    found = storage.list(id.data_folder) if planned else {}
    if found != planned:
        wrong = sorted(set(found.items()) ^ set(planned.items()))[:6]
        raise StorageError(
            f"{id}: the storage shows other objects than were written, among them (key, bytes): {wrong}\n"
            "  state  nothing was committed; the previous checkpoint stays the newest\n"
            "  next   see who writes to or removes from this folder; the next save starts anew",
            operation="list",
            key=id.data_folder,
            attempts=1,
        )
    data = manifest.build(
        id,
        saved_at=now_s,
        resumed_from=resumed_from,
        meta=meta_document,
        tree=document,
        tensors=tensors,
        shards=shards,
        objects=objects,
    )
    newer = look_again(storage, claim, claim_nonce)
    if newer is not None:
        raise lost(ours=claim, newest=newer, doing=f"step {step} was not committed")
    try:
        storage.put_new(id.manifest_key, data)
    except AlreadyThere:
        raise CheckpointError(
            f"{id.manifest_key} exists with other bytes: a nonce occurred twice; save again"
        ) from None
    return manifest.parse(data, id).commit()


def lost(*, ours: int, newest: int, doing: str) -> ClaimLost:
    """The error of a writer that was replaced."""
    how = f"claim {newest} is newer" if newest > ours else "another writer holds its number"
    return ClaimLost(
        f"claim {ours} is no longer ours: {how}\n"
        f"  state  {doing}; what this job committed before the newer claim stays\n"
        "  next   stop this job: another one continues the run (checkpoint ls shows it)",
        ours=ours,
        newest=newest,
    )

"""Makes a drafted save a commit: data first, counted, then one manifest. Needs no torch.

    objects, each hashed  ->  count them  ->  look again at the claim  ->  manifest, create-if-absent  ->  read it back
      ->  look once more

A crash at any arrow up to the manifest leaves data that no manifest names, for sweep to remove: the previous checkpoint
stays newest. Reading back is for storage that says "done" when it is not: what is reported as committed is there, and a
sweep that counts it as whole is right to. It costs one small read. The last look is for a newer claim that was taken
while the manifest was on its way, which may take minutes: one that resumed from an older commit leaves this one outside
its lineage, so it is not reported. Whoever takes a claim lists the commits after that (runs/claims.py), so every commit
that is reported is one that the next claim knows of.

All ways to save come through here: in the foreground, one object after another, and in the writer process, several at
once (writer/server.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_checkpoint.errors import CheckpointError, StorageError, TornManifest
from elastic_checkpoint.format.draft import MANIFEST_BYTES_MAX, Draft, StoredObject
from elastic_checkpoint.format.hashing import CHUNK_BYTES, chunk_hashes, xxh3
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.runs.newer_claim import is_there, left_out_by, lost, newer_claim
from elastic_checkpoint.storage import AlreadyThere, Buffer, Missing, Storage


def write_object(storage: Storage, id: CommitId, index: int, file: Buffer) -> StoredObject:
    """Hash and store object `index` of the save. Raises `StorageError`."""
    stored = StoredObject(len(file), xxh3(file), CHUNK_BYTES, tuple(chunk_hashes(file)))
    storage.put(id.shard_key(index), file)
    return stored


def commit(storage: Storage, draft: Draft, objects: Sequence[StoredObject]) -> None:
    """Commit the save, all of whose objects are written.

    raises  ClaimLost, StorageError (TornManifest among them); then nothing is committed, unless the error says that it
            may be, and nothing that a newer claim goes on from
    """
    planned = draft.planned()
    found = _found(storage, draft, planned)
    if found != planned:
        wrong = sorted(set(found.items()) ^ set(planned.items()))[:6]
        raise StorageError(
            f"{draft.id}: the storage shows other objects than were written, among them (key, bytes): {wrong}\n"
            "  state  nothing was committed; the previous checkpoint stays the newest\n"
            "  next   see who writes to or removes from this folder; the next save starts anew",
            operation="list",
            key=draft.id.data_folder,
            attempts=1,
        )
    data = draft.manifest(objects)
    if len(data) > MANIFEST_BYTES_MAX:
        raise CheckpointError(
            f"{draft.id}: its manifest has {len(data):,} bytes, and readers take at most {MANIFEST_BYTES_MAX:,}\n"
            "  state  nothing was committed; the previous checkpoint stays the newest\n"
            "  next   save fewer or larger tensors: each part of a tensor that a rank holds takes some 70 bytes"
        )
    newer = newer_claim(storage, draft.id.claim, draft.claim_nonce)
    if newer is not None:
        raise lost(ours=draft.id.claim, newest=newer, doing=f"step {draft.id.step} was not committed")
    try:
        storage.put_new(draft.id.manifest_key, data)
    except AlreadyThere:
        raise TornManifest(
            f"{draft.id}: the storage holds other bytes under the name of the manifest that was written: that write "
            "ended halfway\n"
            "  state  nothing was committed; the previous checkpoint stays the newest\n"
            "  next   save again: the next save has another name. This storage does not write objects whole or not "
            "at all",
            operation="create",
            key=draft.id.manifest_key,
            attempts=1,
        ) from None
    _read_back(storage, draft.id, data)
    if (newer := left_out_by(storage, draft.id)) is not None:
        doing = f"step {draft.id.step} was written as that claim was taken, which goes on without it"
        raise lost(ours=draft.id.claim, newest=newer, doing=doing)


def _found(storage: Storage, draft: Draft, planned: Mapping[str, int]) -> dict[str, int]:
    """Return key -> size in bytes, as the storage shows the save; below 0: it is not there. Raises `StorageError`."""
    found = storage.list(draft.id.data_folder) if planned else {}
    if found != planned:  # a listing may be of what was there before, so what it does not show is looked for by name
        found |= {key: _size(storage, key) for key, size in planned.items() if found.get(key) != size}
    return found


def is_committed(storage: Storage, id: CommitId) -> bool:
    """Return whether what a writer that died was about to report is committed. An answer that cannot be had is: no."""
    try:
        return is_there(storage, id.manifest_key) and left_out_by(storage, id) is None
    except CheckpointError:
        return False


def _size(storage: Storage, key: str) -> int:
    """Return the size in bytes; below 0: it is not there. Raises `StorageError`."""
    try:
        return storage.size(key)
    except Missing:
        return -1


def _read_back(storage: Storage, id: CommitId, manifest: bytes) -> None:
    """Raise `StorageError` unless the storage shows the manifest that it took."""
    try:
        found = storage.get(id.manifest_key, 0, len(manifest) + 1)
    except Missing:
        found = b""
    except StorageError as error:
        tried = str(error).partition("\n  state")[0]
        raise StorageError(
            f"{id}: the storage took the manifest, and cannot show it: {tried}\n"
            "  state  this checkpoint may be committed: the next load finds out; those before it are as they were\n"
            "  next   see whether the storage can be reached; the next save starts anew",
            operation=error.operation,
            key=error.key,
            attempts=error.attempts,
        ) from error
    if found != manifest:
        raise StorageError(
            f"{id}: the storage took a manifest of {len(manifest):,} bytes, and shows {len(found):,} "
            f"{'other ones' if len(found) == len(manifest) else 'of them'}\n"
            "  state  this checkpoint counts if the storage shows all of it later: the next load finds out\n"
            "  next   this storage says done when it is not: see what stands between it and this job",
            operation="read",
            key=id.manifest_key,
            attempts=1,
        )

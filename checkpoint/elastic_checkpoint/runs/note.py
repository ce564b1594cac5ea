"""A word beside a commit, written after it: what its saver came to know only later.

    data/c00000007/s000001200-<nonce>/note.json   a JSON object that hashes itself

It lies with the save's data, is written once, and goes with them. A commit is whole without it.
"""

from __future__ import annotations

from typing import Any

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.envelope import seal, unseal
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded

_BYTES_MAX = 1 << 16


def write_note(storage: Storage, id: CommitId, note: dict[str, Any]) -> None:
    """Raises StorageError."""
    storage.put(id.note_key, seal(note))


def read_note(storage: Storage, id: CommitId) -> dict[str, Any] | None:
    """None: there is none, or what lies there is no such word. Raises StorageError."""
    try:
        return unseal(get_bounded(storage, id.note_key, _BYTES_MAX), f"note {id.note_key}")
    except (Missing, TooLarge, CorruptCheckpoint):
        return None

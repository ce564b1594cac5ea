"""What the run's workers have compiled, beside its checkpoints: for workers of later launches, and on fresh machines.

    elastic/compiled/<kind of machine>/<which artifacts>    Artifacts.encoded(), sealed (sealed.py)

The kind of machine is named by a code of the run's secret, so that code for another processor, of another torch or of
another secret is not even found. An object is never changed: whoever has compiled something that is not there adds one,
and no two machines can lose each other's. The folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

from checkpoint.storage import Missing, Storage, TooLarge, get_bounded, open_storage
from elastic.loop.sealed import OVERHEAD_BYTES, NotAuthentic, seal, unseal
from elastic.state.compiled_artifacts import Artifacts

FOLDER = "elastic/compiled"
LABEL = b"elastic compiled code 1"
BYTES_MAX = 256 << 20  # of one kind of machine
_OBJECTS_MAX = 256  # a listing may be anyone's
_RETRY_S = 10.0


class CompiledStorage:
    """
    url, options  of the run
    key           see secret.lasting_key
    machine       see compiled_artifacts.machine
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None, *, key: bytes, machine: Mapping[str, Any], bytes_max: int
    ) -> None:
        self._url = url
        self._options = dict(options or {})
        self._key = key
        self._bytes_max = bytes_max
        self._refused: set[str] = set()
        kind = hmac.digest(key, json.dumps(machine, sort_keys=True).encode(), "sha256").hex()[:32]
        self._folder = f"{FOLDER}/{kind}"

    def read(self) -> tuple[list[Artifacts], list[str]]:
        """What there is for this kind of machine, and of each object that is not taken, why. Raises CheckpointError."""
        found: list[Artifacts] = []
        refused: list[str] = []
        left = self._bytes_max
        with self._storage() as storage:
            for name, size in list(storage.list(self._folder).items())[:_OBJECTS_MAX]:
                try:
                    if size > left:
                        raise TooLarge(size, left)
                    sealed = get_bounded(storage, name, left)
                    left -= len(sealed)
                    found.append(Artifacts.decode(unseal(sealed, key=self._key, place=name)))
                except (TooLarge, NotAuthentic, ValueError) as why:
                    refused.append(f"{name}: {why}")
                    self._refused.add(name)
                except Missing:
                    pass
        return found, refused

    def keep(self, artifacts: Artifacts) -> int:
        """Adds what is not there, or was refused. Returns how many bytes; 0: it is there. Raises TooLarge,
        CheckpointError."""
        name = f"{self._folder}/{hashlib.sha256(' '.join(sorted(artifacts.names)).encode()).hexdigest()[:32]}"
        size = artifacts.nbytes + OVERHEAD_BYTES
        with self._storage() as storage:
            listed = storage.list(self._folder)
            there = {other: nbytes for other, nbytes in listed.items() if other not in self._refused}
            if name in there:
                return 0
            if sum(there.values()) + size > self._bytes_max:
                raise TooLarge(sum(there.values()) + size, self._bytes_max)
            sealed = seal(artifacts.encoded(), key=self._key, place=name)
            storage.put(name, sealed)
        return len(sealed)

    @contextlib.contextmanager
    def _storage(self) -> Iterator[Storage]:
        with contextlib.closing(open_storage(self._url, self._options, retry_s=_RETRY_S)) as storage:
            yield storage

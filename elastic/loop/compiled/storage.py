"""What the run's workers have compiled, beside its checkpoints: for workers of later launches, and on fresh machines.

    elastic/compiled/<kind of machine>/<number>-<SHA-256 of the pieces>    an object (object.py)

The kind of machine is named by a code of the run's secret, so that code for another processor, of another torch or of
another secret is not even found. An object is never changed. Whoever has compiled something that is in none of them
removes those which have to go for it (eviction.py), and adds one of that alone, whose number is above all that it
knows. Two that do so at once may keep a piece twice, or take one number; nothing is lost by it but room. Whoever misses
an object that was there a moment ago compiles. The folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from elastic.loop.compiled.eviction import Kept, make_room
from elastic.loop.compiled.object import Index, decode, decode_index, encode, index_bytes
from elastic.loop.compiled.sealed import NotAuthentic
from elastic.state.compiled_artifacts import Piece
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.storage import Missing, Storage, TooLarge, delete_many, open_storage

T = TypeVar("T")

FOLDER = "elastic/compiled"
LABEL = b"elastic compiled code 1"
BYTES_MAX = 256 << 20  # of one kind of machine
OBJECTS_MAX = 64  # each is a request
_LISTED_MAX = 256  # a listing may be anyone's
_INDEX_BYTES = 64 << 10  # most are shorter
_RETRY_S = 10.0
_NAME = re.compile(r"[0-9]{8}-[0-9a-f]{32}")
_UNUSABLE = (TooLarge, NotAuthentic, ValueError)


@dataclass(frozen=True)
class Added:
    """gone: how many objects went to make room"""

    nbytes: int
    gone: int


class CompiledStorage:
    """
    url, options  of the run
    key           see secret.lasting_key
    machine       see compiled_artifacts.machine
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None,
        *,
        key: bytes,
        machine: Mapping[str, Any],
        bytes_max: int = BYTES_MAX,
        objects_max: int = OBJECTS_MAX,
    ) -> None:
        self._url = url
        self._options = dict(options or {})
        self._key = key
        self._bytes_max = bytes_max
        self._objects_max = objects_max
        self._indexes: dict[str, Index] = {}
        self._unusable: dict[str, str] = {}
        self._unread: dict[str, str] = {}
        kind = hmac.digest(key, json.dumps(machine, sort_keys=True).encode(), "sha256").hex()[:32]
        self._folder = f"{FOLDER}/{kind}"

    @property
    def refused(self) -> list[str]:
        """Of each object that was not taken, why."""
        return [f"{path}: {why}" for path, why in (*self._unusable.items(), *self._unread.items())]

    def read(self) -> Generator[list[Piece], None, None]:
        """What there is for this kind of machine, one object after the other, the youngest first. Raises
        CheckpointError."""
        room = self._bytes_max
        with self._storage() as storage:
            for path, size in reversed(self._listed(storage).items()):
                if room < size <= self._bytes_max:  # several have added at once
                    continue
                decoded = self._taken(path, partial(self._object, storage, path, size))
                if decoded is not None:
                    room -= size
                    self._indexes[path], pieces = decoded
                    yield pieces

    def keep(self, used: Mapping[str, Piece]) -> Added | None:
        """Adds what is in no object. None: all of it is there. Raises NoRoom, CheckpointError, OSError.

        used: name -> piece, all that this process uses, also what it has found here
        """
        with self._storage() as storage:
            listed = self._listed(storage)
            there = self._known(storage, listed)
            held = frozenset().union(*(kept.names for kept in there))
            if used.keys() <= held:
                return None
            room = make_room(
                there,
                {name: piece.nbytes for name, piece in used.items()},
                bytes_max=self._bytes_max,
                objects_max=self._objects_max,
                besides=sum(size for path, size in listed.items() if path in self._unread),
            )
            gone = [*room.gone, *sorted(listed.keys() & self._unusable.keys())]
            delete_many(storage, gone)
            number = 1 + max((_number(path) for path in self._indexes), default=0)
            nbytes = sum(self._put(storage, number, {name: used[name] for name in group}) for group in room.added)
        return Added(nbytes, len(gone))

    def _known(self, storage: Storage, listed: Mapping[str, int]) -> list[Kept]:
        """Of these what is good, as far as its index tells."""
        for path in sorted(listed.keys() - self._indexes.keys() - self._unusable.keys()):
            index = self._taken(path, partial(self._index, storage, path))
            if index is not None:
                self._indexes[path] = index
        good = ((path, size) for path, size in listed.items() if path in self._indexes)
        return [Kept(path, size, frozenset(self._indexes[path].sizes)) for path, size in good]

    def _put(self, storage: Storage, number: int, pieces: Mapping[str, Piece]) -> int:
        contents = {name: piece.read() for name, piece in pieces.items()}
        digest = hashlib.sha256()
        for name, content in contents.items():
            digest.update(name.encode())
            digest.update(content)
        path = f"{self._folder}/{number:08d}-{digest.hexdigest()[:32]}"
        encoded = encode(contents, key=self._key, path=path)
        storage.put(path, encoded)
        self._indexes[path] = decode_index(encoded, key=self._key, path=path)
        self._unusable.pop(path, None)
        return len(encoded)

    def _listed(self, storage: Storage) -> dict[str, int]:
        """The oldest first; the youngest of too many. What has another name is none of ours, and stays."""
        listed = storage.list(self._folder).items()
        ours = [(path, size) for path, size in listed if _NAME.fullmatch(path.removeprefix(f"{self._folder}/"))]
        return dict(ours[-_LISTED_MAX:])

    def _object(self, storage: Storage, path: str, size: int) -> tuple[Index, list[Piece]]:
        if size > self._bytes_max:
            raise TooLarge(size, self._bytes_max)
        return decode(storage.get(path, 0, size), key=self._key, path=path)

    def _index(self, storage: Storage, path: str) -> Index:
        beginning = storage.get(path, 0, _INDEX_BYTES)
        length = index_bytes(beginning)
        if length > len(beginning):
            beginning += storage.get(path, len(beginning), length - len(beginning))
        return decode_index(beginning, key=self._key, path=path)

    def _taken(self, path: str, read: Callable[[], T]) -> T | None:
        """None where it cannot be had: gone, none of ours, or not to be read now."""
        try:
            found = read()
        except Missing:
            return None
        except _UNUSABLE as why:
            self._unusable[path] = str(why)
            return None
        except CheckpointError as why:
            self._unread[path] = str(why)
            return None
        self._unread.pop(path, None)
        return found

    @contextlib.contextmanager
    def _storage(self) -> Iterator[Storage]:
        with contextlib.closing(open_storage(self._url, self._options, retry_s=_RETRY_S)) as storage:
            yield storage


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])

"""What the run's workers have compiled, beside its checkpoints: for workers of later launches, and on fresh machines.

    elastic/compiled/<kind of machine>/<number>-<digest of the pieces' names>    sealed.py: {piece's name: its bytes}

The kind of machine is named by a code of the run's secret, so that code for another processor, of another torch or of
another secret is not even found. An object holds all that one process uses, and is never changed. Whoever uses
something that no object has with all the rest adds one, whose number is above all that it sees, and removes the oldest
where there are too many; what is in use comes back so, and is young then. Two that do so at once may keep a piece
twice, or take one number; nothing is lost by it but room. Whoever misses an object that was there a moment ago
compiles. The folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from elastic.loop.compiled.sealed import NotAuthentic, seal, unseal
from elastic.state.compiled_artifacts import Piece
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.storage import Missing, Storage, TooLarge, delete_many, open_storage

FOLDER = "elastic/compiled"
LABEL = b"elastic compiled code 2"
BYTES_MAX = 256 << 20  # of one kind of machine
OBJECTS_MAX = 64  # each is a request
_LISTED_MAX = 256  # a listing may be anyone's
_RETRY_S = 10.0
_NAME = re.compile(r"[0-8][0-9]{7}-[0-9a-f]{32}")  # no stranger's name takes the last number


class NoRoom(Exception):
    """One process uses more compiled code than the limit. Fields: nbytes, most."""

    def __init__(self, nbytes: int, most: int) -> None:
        super().__init__(f"this process uses {nbytes:,} bytes of compiled code, and at most {most:,} are kept")
        self.nbytes, self.most = nbytes, most


@dataclass(frozen=True)
class Added:
    """An object that was added: its bytes, and how many objects are gone, which were removed to make room."""

    nbytes: int
    gone: int


class CompiledStorage:
    """The compiled code in a run's storage for one kind of machine.

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
        self._known: dict[str, frozenset[str]] = {}  # names of the pieces of what was read or written here
        self._unusable: dict[str, str] = {}
        self._unread: dict[str, str] = {}
        kind = hmac.digest(key, json.dumps(machine, sort_keys=True).encode(), "sha256").hex()[:32]
        self._folder = f"{FOLDER}/{kind}"

    @property
    def refused(self) -> list[str]:
        """Return why each object that was not taken was refused."""
        return [f"{path}: {why}" for path, why in (*self._unusable.items(), *self._unread.items())]

    def read(self) -> Generator[list[Piece], None, None]:
        """Yield the pieces that there are for this kind of machine, object by object, the youngest first.

        Raises CheckpointError.
        """
        room = self._bytes_max
        with self._storage() as storage:
            for path, size in reversed(self._listed(storage).items()):
                if room < size <= self._bytes_max:  # several have added at once
                    continue
                try:
                    if size > self._bytes_max:
                        raise TooLarge(size, self._bytes_max)
                    pieces = decode(storage.get(path, 0, size), key=self._key, path=path)
                except Missing:
                    continue
                except (TooLarge, NotAuthentic, ValueError) as why:
                    self._unusable[path] = str(why)
                except CheckpointError as why:
                    self._unread[path] = str(why)
                else:
                    room -= size
                    self._known[path] = frozenset(piece.name for piece in pieces)
                    yield pieces

    def keep(self, used: Mapping[str, Piece]) -> Added | None:
        """Add an object of these pieces, by their names; return None where one has them all.

        used  all that this process uses, also what it has found here

        Raises NoRoom, CheckpointError, OSError.
        """
        with self._storage() as storage:
            listed = self._listed(storage)
            good = {path: size for path, size in listed.items() if path not in self._unusable}
            if any(self._has(path, used.keys()) for path in good):
                return None
            number = 1 + max(map(_number, good), default=0)
            path = f"{self._folder}/{number:08d}-{_digest(used.keys())}"
            content = encode({name: piece.read() for name, piece in used.items()}, key=self._key, path=path)
            if len(content) > self._bytes_max:
                raise NoRoom(len(content), self._bytes_max)
            goes = self._too_old(good, len(content))
            # Before what is new is written: a key without the right to delete never fills the storage.
            delete_many(storage, [*goes, *sorted(listed.keys() - good.keys())])
            storage.put(path, content)
            self._known[path] = frozenset(used)
            self._unusable.pop(path, None)
        return Added(len(content), len(goes) + len(listed) - len(good))

    def _has(self, path: str, names: Collection[str]) -> bool:
        """Return whether an object has these pieces; if it was not read here, whether it has just these."""
        return path.endswith(_digest(names)) or self._known.get(path, frozenset()) >= frozenset(names)

    def _too_old(self, good: Mapping[str, int], added: int) -> list[str]:
        """Return the oldest objects, which go to make room for `added` bytes. One that cannot be read here stays."""
        stays = dict(good)
        goes = []
        for path in (path for path in good if path not in self._unread):
            if sum(stays.values()) + added <= self._bytes_max and len(stays) < self._objects_max:
                break
            goes.append(path)
            del stays[path]
        return goes

    def _listed(self, storage: Storage) -> dict[str, int]:
        """Return path -> bytes of our objects, the oldest first; where there are too many, of the youngest."""
        listed = storage.list(self._folder).items()
        ours = [(path, size) for path, size in listed if _NAME.fullmatch(path.removeprefix(f"{self._folder}/"))]
        return dict(ours[-_LISTED_MAX:])

    @contextlib.contextmanager
    def _storage(self) -> Iterator[Storage]:
        with contextlib.closing(open_storage(self._url, self._options, retry_s=_RETRY_S)) as storage:
            yield storage


def encode(contents: Mapping[str, bytes], *, key: bytes, path: str) -> bytes:
    """Return the bytes of an object that lies at that path. contents: piece's name -> its bytes."""
    return seal(msgspec.msgpack.encode(contents), key=key, path=path)


def decode(content: bytes, *, key: bytes, path: str) -> list[Piece]:
    """Return the pieces of an object. Raises NotAuthentic, and ValueError for what `encode` did not make."""
    found = msgspec.msgpack.decode(unseal(content, key=key, path=path), type=dict[str, bytes])
    return [Piece.named(name, one) for name, one in found.items()]


def _digest(names: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:32]


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])

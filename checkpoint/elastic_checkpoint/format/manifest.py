"""The manifest: what a commit consists of, written last and believed only after it was checked.

    format      1; 2 where the tree holds values of each rank, which readers of 1 do not know; 3, which
                nobody writes any more, where several processes stored objects under names of their own
    claim, step, nonce, saved_at, resumed_from, meta
    objects     [{"size", "xxh3_128", "chunk_bytes", "chunks": [xxh3_128, ...]}, ...]; object i is shard i of the save;
                in format 3 "helper" beside them, from 1, is in its key
    tensors     name -> {"dtype", "shape", "pieces": [{"object", "start", "offsets", "sizes"}, ...]}
    tree        the document of everything that is no tensor (tree.py), with the tensors' places in it

`parse` holds for every manifest that it returns, whoever wrote the bytes (pieces.py judges the pieces): every number is
an integer in range; each tensor's pieces tile its shape exactly; pieces lie inside their objects and share no byte;
nothing names a path, so nothing outside the commit's own folder can be read; and the tensors are no larger than the
objects, whose sizes the reader compares with the storage before it allocates anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint
from elastic_checkpoint.format.decoding import decode
from elastic_checkpoint.format.document import Document
from elastic_checkpoint.format.draft import Draft, StoredObject
from elastic_checkpoint.format.dtypes import STORED, StoredDtype, name_of, nbytes
from elastic_checkpoint.format.hashing import to_json, unseal
from elastic_checkpoint.format.names import CommitId, id_document, id_from
from elastic_checkpoint.format.pieces import NUMBER_MAX, StoredTensor, Table, columns
from elastic_checkpoint.format.shards import Shard

if TYPE_CHECKING:
    import torch

FORMAT = 3

_RANK_MAX = 64  # axes of a tensor
_HELPER_MAX = 10**9 - 1


@dataclass(frozen=True)
class Commit:
    """A committed checkpoint.

    Attributes:
        saved_at: When its save began to be committed, in seconds of the writer's Unix clock.
        objects: Number of data objects.
        bytes: Their sizes together.
        in_lineage: False for a commit that the run has moved on from: it is never chosen.
    """

    claim: int
    step: int
    nonce: str
    saved_at: float
    meta: dict[str, Any]
    objects: int
    bytes: int
    in_lineage: bool = True

    @property
    def id(self) -> CommitId:
        return CommitId(self.claim, self.step, self.nonce)

    @property
    def name(self) -> str:
        return str(self.id)


@dataclass(frozen=True)
class Manifest:
    """All that a reader needs. `tree` is a document that decode() has yet to judge; `table` is `tensors` in columns."""

    id: CommitId
    saved_at: float
    resumed_from: CommitId | None
    meta: dict[str, Any]
    objects: tuple[StoredObject, ...]
    tensors: dict[str, StoredTensor]
    tree: Document = field(repr=False)
    table: Table = field(repr=False)

    def as_commit(self, *, in_lineage: bool = True) -> Commit:
        size = sum(stored.size for stored in self.objects)
        return Commit(*self.id, self.saved_at, self.meta, len(self.objects), size, in_lineage)

    def key(self, index: int) -> str:
        """Return the key of object `index`."""
        return self.id.shard_key(index, self.objects[index].helper)

    def tensors_in(self, index: int) -> tuple[str, ...]:
        """Name of the tensors that lie, at least partly, in object `index`."""
        return tuple(self._in_objects.get(index, ()))

    @cached_property
    def _in_objects(self) -> dict[int, list[str]]:
        """Return the tensors of each object, of all at once: where all of many are damaged, each is asked for."""
        found: dict[int, list[str]] = {}
        for name, stored in self.tensors.items():
            for index in set(stored.objects.tolist()):
                found.setdefault(index, []).append(name)
        return found


def table(tensors: dict[str, torch.Tensor], shards: Sequence[Shard]) -> bytes:
    """Return the manifest's `tensors`, as JSON."""
    pieces: dict[str, list[dict[str, Any]]] = {name: [] for name in tensors}
    for index, shard in enumerate(shards):
        for piece in shard.pieces:
            entry = {"object": index, "start": piece.start, "offsets": piece.offsets, "sizes": piece.sizes}
            pieces[piece.tensor].append(entry)
    return to_json(
        {
            name: {"dtype": name_of(tensor.dtype), "shape": list(tensor.shape), "pieces": pieces[name]}
            for name, tensor in tensors.items()
        }
    )


def draft(
    id: CommitId,
    *,
    claim_nonce: str,
    saved_at: float,
    resumed_from: CommitId | None,
    meta: Document,
    tree: Document,
    table: bytes,
    sizes: tuple[int, ...],
    per_rank: bool = False,
) -> Draft:
    """Return the save's manifest but for its objects, whose `sizes` are planned.

    meta, tree  documents of `tree.encode`
    table       what the function of that name returned, which holds for as long as the plan does
    per_rank    whether the tree holds values of each rank
    """
    before = {
        "format": 2 if per_rank else 1,
        "claim": id.claim,
        "step": id.step,
        "nonce": id.nonce,
        "saved_at": saved_at,
        "resumed_from": id_document(resumed_from),
        "meta": meta,
    }
    head = to_json(before)[:-1] + b',"objects":'
    tail = b',"tensors":' + table + b',"tree":' + to_json(tree) + b"}"
    return Draft(id, claim_nonce, sizes, head, tail)


def parse(data: bytes, id: CommitId) -> Manifest:
    """Return the manifest in these bytes, which lay under the key of `id`; checked as the top of this file says.

    Raises `CorruptCheckpoint`; plain `CheckpointError` where a newer version wrote it, since an older checkpoint
    must then not be taken in its place without a word.
    """
    try:
        return _checked(unseal(data, "the document"), id)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise corrupt_manifest(id, f"{type(error).__name__}: {error}") from error
    except CorruptCheckpoint as error:
        raise corrupt_manifest(id, error) from error


def corrupt_manifest(id: CommitId, why: object) -> CorruptCheckpoint:
    """Return the error that names the manifest of this commit."""
    return CorruptCheckpoint(f"manifest {id.manifest_key}: {why}", commit=str(id), key=id.manifest_key)


def _checked(body: dict[str, Any], id: CommitId) -> Manifest:
    written_in = _number(body["format"])
    if written_in > FORMAT:
        raise CheckpointError(
            f"{id} is written in format {written_in}; this version reads up to {FORMAT}\n"
            "  state  nothing was read\n  next   use the version of this package that wrote it, or a newer one"
        )
    _expect(written_in > 0, f"format {written_in}, expected 1 to {FORMAT}")
    found = CommitId(_number(body["claim"]), _number(body["step"]), body["nonce"])
    _expect(found == id, f"it says that it is {found}")
    resumed_from = id_from(body["resumed_from"])
    saved_at = body["saved_at"]
    _expect(type(saved_at) in (int, float) and 0 <= saved_at < 2**53, "saved_at is no time")
    meta = decode(body["meta"], {})
    _expect(type(meta) is dict, "meta is no object")
    objects = tuple(_object(entry) for entry in _list(body["objects"]))
    table = columns([_tensor(name, entry) for name, entry in body["tensors"].items()])
    table.judge([stored.size for stored in objects])
    return Manifest(id, float(saved_at), resumed_from, meta, objects, table.tensors(), body["tree"], table)


def _object(entry: dict[str, Any]) -> StoredObject:
    size, chunk_bytes = _number(entry["size"]), _number(entry["chunk_bytes"])
    chunks = tuple(_hash(chunk) for chunk in _list(entry["chunks"]))
    _expect(chunk_bytes > 0, "chunk_bytes is 0")
    _expect(len(chunks) == -(-size // chunk_bytes), f"{len(chunks)} chunks of {chunk_bytes} bytes for {size} bytes")
    helper = _number(entry.get("helper", 0))
    _expect(helper <= _HELPER_MAX, f"helper {helper}")
    return StoredObject(size, _hash(entry["xxh3_128"]), chunk_bytes, chunks, helper)


def _tensor(name: str, entry: dict[str, Any]) -> tuple[str, StoredDtype, tuple[int, ...], list[Any]]:
    _expect(entry["dtype"] in STORED, f"tensor {name!r} has dtype {entry['dtype']!r}, which this version does not know")
    dtype, shape = STORED[entry["dtype"]], _numbers(entry["shape"])
    strides = math.prod(max(1, size) for size in shape)  # torch computes them also of what is empty
    _expect(max(strides, nbytes(shape, dtype)) < 2**63, f"tensor {name!r} has shape {shape}, which no tensor has")
    return name, dtype, shape, _list(entry["pieces"])


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CorruptCheckpoint(otherwise)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise CorruptCheckpoint(f"{str(value)[:40]} is no number from 0 to 2**62 - 1")
    return value


def _numbers(value: object) -> tuple[int, ...]:
    numbers = tuple(_number(item) for item in _list(value))
    _expect(len(numbers) <= _RANK_MAX, f"{len(numbers)} axes")
    return numbers


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise CorruptCheckpoint(f"a {type(value).__name__} where a list belongs")
    return value


def _hash(value: object) -> str:
    if type(value) is not str or len(value) != 32 or set(value) - set("0123456789abcdef"):
        raise CorruptCheckpoint(f"{str(value)[:40]!r} is no xxh3_128")
    return value

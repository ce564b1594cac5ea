"""A manifest on its way from rank 0, which alone reads and judges it, to the other ranks: columns, not text.

A length, then JSON of what is no number of a piece, then the pieces' columns as 64-bit integers. It travels between
processes of one job and of one version, so it is believed.
"""

from __future__ import annotations

import json

import numpy as np

from elastic_checkpoint.format.draft import StoredObject
from elastic_checkpoint.format.dtypes import STORED
from elastic_checkpoint.format.envelope import to_json
from elastic_checkpoint.format.manifest import Manifest
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.pieces import Table
from elastic_checkpoint.storage import Buffer

_COLUMNS = ("counts", "objects", "starts", "offsets", "sizes")


def packed(manifest: Manifest) -> bytes:
    table = manifest.table
    columns = [getattr(table, name) for name in _COLUMNS]
    head = to_json(
        {
            "tree": manifest.tree,
            "names": table.names,
            "dtypes": [dtype.name for dtype in table.dtypes],
            "shapes": table.shapes,
            "objects": [{**one.document(), "helper": one.helper} for one in manifest.objects],
            "lengths": [len(column) for column in columns],
        }
    )
    return b"".join([len(head).to_bytes(8, "little"), head, *(column.astype("<i8").tobytes() for column in columns)])


def unpacked(data: Buffer, id: CommitId) -> Manifest:
    """The manifest without what only people read."""
    view = memoryview(data)
    at = 8 + int.from_bytes(view[:8], "little")
    head = json.loads(bytes(view[8:at]))
    columns = []
    for length in head["lengths"]:
        columns.append(np.frombuffer(view[at : at + 8 * length], "<i8").astype(np.int64))
        at += 8 * length
    shapes = [tuple(shape) for shape in head["shapes"]]
    table = Table(head["names"], [STORED[name] for name in head["dtypes"]], shapes, *columns)
    objects = tuple(map(StoredObject.of, head["objects"]))
    return Manifest(id, 0.0, None, {}, objects, table.tensors(), head["tree"], table)

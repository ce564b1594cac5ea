"""What differs between two checkpoints, entry by entry: names, kinds, shapes, dtypes, and values to the bit.

An entry is a tensor, an array or a plain value under the path that leads to it, the names that `digest` uses. What
holds it does not count: a list and a tuple, a dict and an OrderedDict are alike, and so is how a state was sharded.
Where a run lies does not count either: absolute paths and URLs that differ, as values or as keys, are told of as such.

One tensor of each side is in memory at a time, and a few chunks of either side's objects (stream.py). Every byte that
is compared was verified first. Tensors are read in the order in which A's objects hold them; where B's lie in quite
another order, some of its chunks are read again.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_checkpoint.format.dtypes import STORED
from elastic_checkpoint.format.leaves import Array, Dtype, Value
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.load.stream import Bytes, Stream
from elastic_checkpoint.storage import Storage

_PLACE = r"(?:/|[A-Za-z][\w+-]*://)"  # how an absolute path or a URL begins
_PLACE_VALUE = re.compile(f'"{_PLACE}')  # as JSON
_PLACE_KEY = re.compile(rf"(?:^|(?<!\.)\.)(?={_PLACE})")  # in an entry's path
_BLOCK = 2**22  # elements that are compared at a time
_ALSO_NUMPYS = frozenset(STORED) & {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}  # of NumPy itself: packages add others


class DifferenceKind(str, Enum):
    """The way in which A and B differ in one entry.

    MISSING  A has the entry, B lacks it
    EXTRA    B has it, A lacks it
    OTHER    another kind, shape or dtype
    VALUE    other bits
    PATH     another absolute path or URL, as the value or as a key above it: two runs may be equal but for these
    """

    MISSING, EXTRA, OTHER, VALUE, PATH = "missing", "extra", "other", "value", "path"

    __str__ = str.__str__


@dataclass(frozen=True)
class Difference:
    """One entry that is not the same on both sides.

    a, b       what each side has, in short; None where it has nothing
    elements   of the tensor; None unless kind is VALUE and the entry a tensor or array
    differing  how many of them differ in any bit
    largest    the largest absolute difference of two finite elements; None where there is none, or no number
    nonfinite  how many of the differing ones are NaN or infinite on either side
    """

    path: str
    kind: DifferenceKind
    a: str | None
    b: str | None
    elements: int | None = None
    differing: int | None = None
    largest: float | None = None
    nonfinite: int = 0


@dataclass
class Comparison:
    """The result of comparing two checkpoints: what differs, and how much is equal.

    differences     in the order of A's tree, then what only B has; those of kind PATH last
    equal_tensors   how many tensors and arrays are equal, tied ones under each of their names
    equal_values    how many plain values are equal
    """

    differences: list[Difference] = field(default_factory=list)
    equal_tensors: int = 0
    equal_values: int = 0

    @property
    def counted(self) -> list[Difference]:
        """Return the differences for which the two are not equal."""
        return [one for one in self.differences if one.kind != DifferenceKind.PATH]


def compare(a: Side, b: Side, *, only: Sequence[str] = ()) -> Comparison:
    """Compare two checkpoints, or these parts of them. Raises CorruptCheckpoint, StorageError."""
    found = Comparison()
    differences: dict[str, Difference] = {}
    to_read: list[tuple[str, Array, Array]] = []
    entries_a, entries_b = a.below(only), b.below(only)
    moved = _moved(entries_a, entries_b)
    for path, mine in entries_a.items():
        theirs = entries_b.get(moved.get(path, path))
        if theirs is None:
            differences[path] = Difference(path, DifferenceKind.MISSING, str(mine), None)
        elif isinstance(mine, Array) and isinstance(theirs, Array) and mine.form == theirs.form:
            to_read.append((path, mine, theirs))
        elif isinstance(mine, Array) or isinstance(theirs, Array):
            differences[path] = Difference(path, DifferenceKind.OTHER, str(mine), str(theirs))
        elif mine == theirs:
            found.equal_values += 1
        else:
            places = _PLACE_VALUE.match(mine.text) and _PLACE_VALUE.match(theirs.text)
            kind = DifferenceKind.PATH if places else DifferenceKind.VALUE
            differences[path] = Difference(path, kind, str(mine), str(theirs))

    known: dict[tuple[str, str], TensorDifference] = {}
    for path, mine, theirs in sorted(to_read, key=lambda item: a.stream.where(item[1].name)):
        names = mine.name, theirs.name
        if names not in known:
            known[names] = count(a.stream.read(mine.name), b.stream.read(theirs.name), mine.dtype)
        counted = known[names]
        if counted.differing:
            differences[path] = Difference(
                path, DifferenceKind.VALUE, str(mine), str(theirs), math.prod(mine.shape), *counted.as_tuple()
            )
        else:
            found.equal_tensors += 1
    for path, other in moved.items():
        differences.setdefault(path, Difference(path, DifferenceKind.PATH, _place(path), _place(other)))
    met = {*entries_a, *moved.values()}
    for path, theirs in entries_b.items():
        if path not in met:
            differences[path] = Difference(path, DifferenceKind.EXTRA, None, str(theirs))
    order = {path: number for number, path in enumerate({**entries_a, **entries_b})}
    found.differences = sorted(differences.values(), key=lambda one: (one.kind == DifferenceKind.PATH, order[one.path]))
    return found


def _moved(a: Collection[str], b: Collection[str]) -> dict[str, str]:
    """Return the names in B of A's entries that B lacks, below a key that is an absolute path or a URL.

    Those of one dict are matched in their order: two runs that do the same write the same files one after the other.
    """
    rest: dict[str, list[str]] = defaultdict(list)
    for path in b:
        if path not in a and (key := _PLACE_KEY.search(path)):
            rest[path[: key.start()]].append(path)
    found = {}
    for path in a:
        if path not in b and (key := _PLACE_KEY.search(path)) and rest[path[: key.start()]]:
            found[path] = rest[path[: key.start()]].pop(0)
    return found


def _place(path: str) -> str:
    """Return the key that is an absolute path or a URL, with what is below it."""
    return repr(_PLACE_KEY.split(path, maxsplit=1)[-1])


class Side:
    """One commit, read tensor by tensor."""

    def __init__(self, storage: Storage, id: CommitId) -> None:
        """Read the manifest and ask for the objects' sizes. Raises `CorruptCheckpoint`, `StorageError`."""
        self.stream = Stream(storage, id, verify=False)
        self.entries: dict[str, Array | Value] = {}
        for path, leaf in self.stream.entries(self.stream.tree):
            name, number = path, 1
            while name in self.entries:  # {"a.b": 1} beside {"a": {"b": 2}}
                number += 1
                name = f"{path}#{number}"
            self.entries[name] = leaf

    def below(self, parts: Sequence[str]) -> dict[str, Array | Value]:
        """Return the entries of these parts, or all where none is named."""
        return {
            path: leaf
            for path, leaf in self.entries.items()
            if not parts or any(path == part or path.startswith(f"{part}.") for part in parts)
        }

    @property
    def commit(self) -> Commit:
        return self.stream.commit


@dataclass(frozen=True)
class TensorDifference:
    """How two tensors of one form differ; see `Difference`."""

    differing: int = 0
    largest: float | None = None
    nonfinite: int = 0

    def as_tuple(self) -> tuple[int, float | None, int]:
        return self.differing, self.largest, self.nonfinite

    def __add__(self, other: TensorDifference) -> TensorDifference:
        both = [largest for largest in (self.largest, other.largest) if largest is not None]
        return TensorDifference(
            self.differing + other.differing, max(both, default=None), self.nonfinite + other.nonfinite
        )


def count(a: Bytes, b: Bytes, dtype: Dtype) -> TensorDifference:
    """Count the elements that differ in any bit, so that a NaN equals itself and -0.0 does not equal 0.0. Pure."""
    total, step = TensorDifference(), _BLOCK * dtype.itemsize
    for start in range(0, len(a), step):
        mine, theirs = a[start : start + step], b[start : start + step]
        if not np.array_equal(mine, theirs):
            x, y = _words(mine, dtype.itemsize), _words(theirs, dtype.itemsize)
            differs = (x != y).any(axis=1) if x.shape[1] > 1 else (x != y)[:, 0]
            total += _measure(x[differs], y[differs], dtype)
    return total


def _words(data: Bytes, itemsize: int) -> NDArray[Any]:
    """Return one row of machine words for each element: they are compared several times faster than its bytes."""
    size = next(size for size in (8, 4, 2, 1) if itemsize % size == 0)
    words: NDArray[Any] = data.view(f"u{size}").reshape(-1, itemsize // size)
    return words


def _measure(a: NDArray[Any], b: NDArray[Any], dtype: Dtype) -> TensorDifference:
    """Return how far apart these elements are, which all differ, as words."""
    x, y = _numbers(a, dtype), _numbers(b, dtype)
    if x is None or y is None:
        return TensorDifference(len(a))
    if x.dtype.kind in "iu":
        gaps = np.maximum(x, y).view(np.uint64) - np.minimum(x, y).view(np.uint64)  # exact: it wraps around twice
        return TensorDifference(len(a), int(gaps.max()))
    finite = np.isfinite(x) & np.isfinite(y)
    with np.errstate(over="ignore"):
        distances = np.abs(x[finite] - y[finite])
    largest = float(distances.max()) if len(distances) else None
    return TensorDifference(len(a), largest, int(np.count_nonzero(~finite)))


def _numbers(words: NDArray[Any], dtype: Dtype) -> NDArray[Any] | None:
    """Return the elements as int64, uint64, float64 or complex128, or None where they are no numbers."""
    flat = words.reshape(-1).view(np.uint8)
    values = _values(flat, dtype)
    if values is None:
        return None
    wide = {"b": np.int64, "i": np.int64, "u": np.uint64, "f": np.float64, "c": np.complex128}.get(values.dtype.kind)
    return None if wide is None else values.astype(wide)


def _values(flat: Bytes, dtype: Dtype) -> NDArray[Any] | None:
    """Return the elements in a dtype that NumPy has, without loss, or None where there is none."""
    if isinstance(dtype, np.dtype):
        return flat.view(dtype)
    if dtype.name in _ALSO_NUMPYS:
        return flat.view(dtype.name)
    if dtype.name == "bfloat16":  # the upper half of a float32
        return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    import torch  # only here: it takes seconds, and few states hold what is left

    from elastic_checkpoint.format.tensors import torch_dtype

    tensor = torch.from_numpy(flat).view(torch_dtype(dtype))
    try:
        return tensor.to(torch.complex64 if dtype.name == "complex32" else torch.float32).numpy()
    except (RuntimeError, TypeError):  # packed dtypes of 4 bits convert to nothing
        return None

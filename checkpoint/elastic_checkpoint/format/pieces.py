"""The pieces of all tensors of a manifest, in columns: judged and searched by the array, millions in a second or two.

A run of a thousand ranks stores each tensor in a thousand pieces. One object for each, made and checked on every rank,
took 25 µs and hundreds of bytes; here it is a few numbers in arrays that all tensors share. `StoredTensor.pieces` makes
objects of them, for whoever wants all of one tensor.

`judge` holds for whatever it returns, whoever wrote the document: every number is an integer in range, each tensor's
pieces lie in it and tile it, they lie inside their objects, and no two share a byte.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.dtypes import StoredDtype, nbytes
from elastic_checkpoint.format.shards import Piece

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

NUMBER_MAX = 2**62
_PRIMES = (2**31 - 1, 2**31 - 19, 2**31 - 61)  # products of two of their remainders fit into 64 bits
_INTEGER_ONLY = frozenset([int])


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor's dtype and shape, and where its pieces lie.

    objects, starts, bytes  of each piece: the object that holds it, where in that it begins, and how long it is
    offsets, sizes          its box, a row for each piece
    """

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    objects: Integers
    starts: Integers
    bytes: Integers
    offsets: Integers
    sizes: Integers

    @cached_property
    def pieces(self) -> tuple[tuple[int, Piece], ...]:
        """Return the pieces, each with the number of the object that holds it."""
        columns = (self.objects, self.starts, self.bytes, self.offsets, self.sizes)
        return tuple(
            (index, Piece(self.name, tuple(offsets), tuple(sizes), length, start))
            for index, start, length, offsets, sizes in zip(*(column.tolist() for column in columns), strict=True)
        )


@dataclass(frozen=True, eq=False)
class Table:
    """All tensors; their pieces one after another, in the tensors' order.

    counts          pieces of each tensor
    offsets, sizes  one number per axis, piece after piece; a piece of a tensor without axes has one all the same
    """

    names: list[str]
    dtypes: list[StoredDtype]
    shapes: list[tuple[int, ...]]
    counts: Integers
    objects: Integers
    starts: Integers
    offsets: Integers
    sizes: Integers

    def tensors(self) -> dict[str, StoredTensor]:
        lengths = self._lengths()
        found: dict[str, StoredTensor] = {}
        at = axis = 0
        for name, dtype, shape, count in zip(self.names, self.dtypes, self.shapes, self.counts.tolist(), strict=True):
            axes = max(1, len(shape))
            rows, numbers = slice(at, at + count), slice(axis, axis + count * axes)
            boxes = [column[numbers].reshape(count, axes)[:, : len(shape)] for column in (self.offsets, self.sizes)]
            found[name] = StoredTensor(
                name, dtype, shape, self.objects[rows], self.starts[rows], lengths[rows], boxes[0], boxes[1]
            )
            at, axis = rows.stop, numbers.stop
        return found

    @cached_property
    def axes(self) -> Integers:
        """Return how many numbers each piece has in `offsets` and `sizes`."""
        return np.repeat(_integers([max(1, len(shape)) for shape in self.shapes]), self.counts)

    @cached_property
    def firsts(self) -> Integers:
        """Return where each piece's numbers begin."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.axes)])[:-1].astype(np.int64)

    def _lengths(self) -> Integers:
        """Return bytes of each piece."""
        widths = np.repeat(_integers([dtype.itemsize for dtype in self.dtypes]), self.counts)
        return np.multiply.reduceat(self.sizes, self.firsts) * widths if len(widths) else widths

    def judge(self, object_sizes: Sequence[int]) -> None:
        """Raise CorruptCheckpoint for what the top of this file rules out; columns hold numbers from 0 to 2**62 - 1."""
        wholes = map(nbytes, self.shapes, self.dtypes)
        ends_of = _integers(object_sizes)
        counted = zip(self.shapes, self.counts.tolist(), strict=True)
        shapes = np.concatenate(
            [np.tile(_integers(shape or (1,)), count) for shape, count in counted] or [_integers([])]
        )
        inside = (self.sizes > 0) & (self.offsets + self.sizes <= shapes)
        self._refuse(np.logical_and.reduceat(inside, self.firsts) if len(self.firsts) else inside, "lies outside it")
        self._refuse(self.objects < len(ends_of), f"lies in an object beyond the {len(ends_of)} that there are")
        lengths = self._lengths()
        self._refuse(self.starts + lengths <= ends_of[self.objects], "ends beyond its object")
        covered = _sums(lengths, self.counts).tolist()
        for name, needed, held in zip(self.names, wholes, covered, strict=True):
            if needed != held:
                raise CorruptCheckpoint(f"tensor {name!r} needs {needed} bytes, its pieces hold {held}")
        self._tile()
        self._apart(lengths)

    def _tile(self) -> None:
        """Raise CorruptCheckpoint unless every element lies in exactly one box. Linear in their number, for any axes.

        Let each cut, a coordinate of an axis, be a variable. Then the sum over the boxes of the product over the axes
        of (cut where it begins - cut where it ends) is a polynomial, and two sets of boxes have the same one exactly if
        they cover each element equally often: undoing the differences, axis by axis, gives the counts. It is compared
        with that of the whole tensor at random points modulo primes, where different ones agree with a chance of at
        most 64 / 2**31 (Schwartz and Zippel) each, whoever chose the boxes; there are three.
        """
        if not len(self.counts):
            return
        ones = np.ones(len(self.counts), np.int64)
        wholes = Table(self.names, self.dtypes, self.shapes, ones, ones, ones, *_boxes_of(self.shapes))
        for prime in _PRIMES:
            key = secrets.randbits(64)
            covered = _sums(self._products(prime, key), self.counts) % prime
            expected = wholes._products(prime, key) % prime
            filled = np.array([0 not in shape for shape in self.shapes])  # what has no elements has no pieces
            wrong = np.flatnonzero((covered != expected) & filled)
            if len(wrong):
                raise CorruptCheckpoint(f"pieces of tensor {self.names[wrong[0]]!r} overlap")

    def _products(self, prime: int, key: int) -> Integers:
        """Return of each piece the product over its axes of the difference of its cuts, modulo the prime."""
        axes = self.axes
        axis_of = np.arange(len(self.offsets)) - np.repeat(self.firsts, axes)  # which axis each number is of
        salts = _mixed(np.arange(int(axes.max(initial=1)), dtype=np.uint64), key)[axis_of]
        begin = _mixed(self.offsets.astype(np.uint64) + salts, key) % np.uint64(prime)
        end = _mixed((self.offsets + self.sizes).astype(np.uint64) + salts, key) % np.uint64(prime)
        differences = (begin + np.uint64(prime) - end) % np.uint64(prime)
        product = np.ones(len(self.firsts), np.uint64)
        for axis in range(int(axes.max(initial=0))):
            having = axes > axis
            product[having] = product[having] * differences[self.firsts[having] + axis] % np.uint64(prime)
        return product.astype(np.int64)

    def _apart(self, lengths: Integers) -> None:
        order = np.lexsort((self.starts, self.objects))
        objects, starts, ends = self.objects[order], self.starts[order], (self.starts + lengths)[order]
        shared = np.flatnonzero((objects[1:] == objects[:-1]) & (ends[:-1] > starts[1:]))
        if len(shared):
            one, other = (self._owner(int(order[shared[0] + step])) for step in (0, 1))
            raise CorruptCheckpoint(f"tensors {one!r} and {other!r} share bytes of object {objects[shared[0]]}")

    def _refuse(self, holds: NDArray[np.bool_], otherwise: str) -> None:
        wrong = np.flatnonzero(~holds)
        if len(wrong):
            first = int(self.firsts[wrong[0]])
            axes = slice(first, first + int(self.axes[wrong[0]]))
            box = f"{self.offsets[axes].tolist()} + {self.sizes[axes].tolist()}"
            raise CorruptCheckpoint(f"piece {box} of tensor {self._owner(int(wrong[0]))!r} {otherwise}")

    def _owner(self, piece: int) -> str:
        return self.names[int(np.searchsorted(np.cumsum(self.counts), piece, side="right"))]


def columns(entries: Sequence[tuple[str, StoredDtype, tuple[int, ...], list[Any]]]) -> Table:
    """Return the table of these tensors, whose pieces are as the manifest has them. Not judged yet.

    Raises CorruptCheckpoint, KeyError and TypeError for what is no list of pieces.
    """
    objects: list[Any] = []
    starts: list[Any] = []
    offsets: list[Any] = []
    sizes: list[Any] = []
    for name, _, shape, pieces in entries:
        axes = len(shape)
        for piece in pieces:
            first, size = piece["offsets"], piece["sizes"]
            if not (type(first) is type(size) is list and len(first) == len(size) == axes):
                raise CorruptCheckpoint(f"a piece of tensor {name!r} has another number of axes")
            objects.append(piece["object"])
            starts.append(piece["start"])
            offsets += first or (0,)
            sizes += size or (1,)
    counts = _integers([len(pieces) for *_, pieces in entries])
    return Table(
        [name for name, *_ in entries],
        [dtype for _, dtype, _, _ in entries],
        [shape for _, _, shape, _ in entries],
        counts,
        *(_numbers(column) for column in (objects, starts, offsets, sizes)),
    )


def _numbers(values: list[Any]) -> Integers:
    """Raise CorruptCheckpoint where one is no integer from 0 to 2**62 - 1."""
    if set(map(type, values)) - _INTEGER_ONLY:
        wrong = next(value for value in values if type(value) is not int)
        raise CorruptCheckpoint(f"{str(wrong)[:40]} is no number from 0 to 2**62 - 1")
    try:
        found = _integers(values)
    except OverflowError:
        raise CorruptCheckpoint("a number is beyond 2**62 - 1") from None
    if len(found) and (int(found.min()) < 0 or int(found.max()) >= NUMBER_MAX):
        raise CorruptCheckpoint(f"{int(found.min())} or {int(found.max())} is no number from 0 to 2**62 - 1")
    return found


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, np.int64)


def _boxes_of(shapes: list[tuple[int, ...]]) -> tuple[Integers, Integers]:
    """Return offsets and sizes of each tensor as one piece."""
    sizes = _integers([size for shape in shapes for size in shape or (1,)])
    return np.zeros(len(sizes), np.int64), sizes


def _sums(values: Integers, counts: Integers) -> Integers:
    """Return the sum of each tensor's run of values, 0 for none."""
    found = np.zeros(len(counts), np.int64)
    having = counts > 0
    if having.any():
        begins = (np.cumsum(counts) - counts)[having]
        found[having] = np.add.reduceat(values, begins)
    return found


def _mixed(values: Words, key: int) -> Words:
    """Return a permutation of 64-bit words that the key chooses (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed: Words = values + np.uint64(key)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed

"""A shuffle that is computed, not stored: it says at which position which example stands.

Promises  `at` is a bijection of 0 … length-1, a different one for every key, with random access: position p
          costs the same in a dataset of ten examples and of a trillion, and no list of indices exists.
          The numbers depend on (VERSION, length, key) alone, on every platform and NumPy version: they are
          integer arithmetic modulo 2**64. A run records the version; with another one it is refused.
Leaves    which positions a step reads to data_plan.py, and how a key comes from seed and epoch to order.py.

A position is written as two digits (left, right): right has k bits, about half of the length's, and left is below a,
the fewest multiples of 2**k that hold the length. A Feistel network mixes them: rounds add a keyed hash of the right
digit to the left one, modulo a, and combine a keyed hash of the left digit with the right one by exclusive or. The hash
is the upper half of a square modulo 2**64; a multiplication and a shift bring it below a, where a division would take
most of the time. Values that land between length and a * 2**k are sent through again ("cycle walking", Black and
Rogaway 2002, doi:10.1007/3-540-45760-7_9); they are fewer than one in a.

For up to 256 elements digits would have too few values: there the order is a table, sorted by random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

VERSION = 1  # of the numbers; tests/pure/test_permutation.py pins them

LENGTH_MAX = 2**62
TABLE_MAX = 256

# Measured over a million random keys (2026-11-23), in standard deviations of chi-square. The difference of two
# positions' values: 4 rounds 500 at length 257 and 160 at 1,000; 6 rounds 7 at 300 and noise from 513 up; 8 none.
ROUNDS = 6
ROUNDS_SMALL = 8
LENGTH_SMALL = 2**16

_SIZES = 5  # words before the keys
_CHUNK = 8192  # positions at a time: three arrays of them lie in a core's own cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# Looked up once: of a step's 256 positions, calls take most of the time.
_add, _subtract, _multiply, _minimum = np.add, np.subtract, np.multiply, np.minimum
_and, _or, _xor, _shift_left, _shift_right = (
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift
)  # fmt: skip

_Words = NDArray[np.uint64]
_Once = Callable[[_Words, list[_Words]], None]


class Permutation:
    """A keyed shuffle of 0 … length-1 with random access and O(1) memory.

    length  1 … 2**62
    key     any integer; taken modulo 2**64
    cost    tests/benchmarks/data_speed.py measures it
    """

    __slots__ = ("_order", "length")

    def __init__(self, length: int, key: int) -> None:
        if not 1 <= length <= LENGTH_MAX:
            raise ValueError(f"a permutation of {length} elements: expected a length from 1 to {LENGTH_MAX}")
        self.length = length
        self._order = _Table(length, key) if length <= TABLE_MAX else _Network(length, key)

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the examples at these positions, in the same shape. Raises IndexError for one outside 0 … length-1."""
        values = self._inside(positions)
        self._order.forward(values)
        return values.view(np.int64).reshape(np.shape(positions))

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions at which these examples stand: the inverse of `at`, which raises likewise."""
        positions = self._inside(values)
        self._order.backward(positions)
        return positions.view(np.int64).reshape(np.shape(values))

    def _inside(self, given: NDArray[np.int64]) -> _Words:
        """Return a flat copy. Raises IndexError for a number outside 0 … length-1."""
        values = np.array(given, dtype=np.int64).reshape(-1).view(np.uint64)  # a negative one reads as huge
        if values.size and int(np.maximum.reduce(values)) >= self.length:
            raise IndexError(
                f"{int(np.min(given))} … {int(np.max(given))} leaves 0 … {self.length - 1}, "
                f"the range of a permutation of {self.length} elements"
            )
        return values


class _Table:
    """The order of few elements, as a table: all orders are equally likely, as far as the random numbers are random."""

    __slots__ = ("_table",)

    def __init__(self, length: int, key: int) -> None:
        self._table = np.argsort(random_words(key, np.arange(length)), kind="stable").astype(np.uint8)

    def forward(self, values: _Words) -> None:
        values[:] = self._table[values.view(np.int64)]

    def backward(self, values: _Words) -> None:
        values[:] = np.argsort(self._table)[values.view(np.int64)]


class _Network:
    """A Feistel network. Rounds go in pairs, for the left digit and for the right one; each takes two words of key."""

    __slots__ = ("_length", "_words")

    def __init__(self, length: int, key: int) -> None:
        rounds = ROUNDS if length >= LENGTH_SMALL else ROUNDS_SMALL
        bits = (length - 1).bit_length() // 2
        keys = random_words(key, np.arange(2 * rounds))
        keys[::2] |= np.uint64(1)  # factors: an odd one loses nothing modulo 2**64
        left = -(-length >> bits)  # the fewest multiples of 2**bits that hold the length
        sizes = np.array([bits, 2**bits - 1, 64 - bits, 32, left], dtype=np.uint64)
        self._words = np.concatenate([sizes, keys])
        self._length = np.uint64(length)

    def forward(self, values: _Words) -> None:
        """Replace positions by their examples, in place; `backward` does the reverse."""
        self._walk(values, _forward)

    def backward(self, values: _Words) -> None:
        self._walk(values, _backward)

    def _walk(self, values: _Words, once: _Once) -> None:
        """Send values through `once`, in place, until all are inside the range."""
        if values.size == 1:  # with one element ufuncs take twice as long as with two
            both = np.repeat(values, 2)
            self._walk(both, once)
            values[:] = both[:1]
            return
        words = [self._words[i, ...] for i in range(self._words.size)]  # ufuncs take longer to read a scalar
        for start in range(0, values.size, _CHUNK):
            chunk = values[start : start + _CHUNK]
            once(chunk, words)
            outside = (chunk >= self._length).nonzero()[0]
            if outside.size:  # ends: the cycle through a value inside the range comes back inside
                again = chunk[outside]
                self._walk(again, once)
                chunk[outside] = again


def _forward(values: _Words, words: list[_Words]) -> None:
    """Send values through the network once, in place. Each operation has its `out`: allocating takes longer."""
    bits, mask, _, _, left_size = words[:_SIZES]
    left, right, hashed = values >> bits, values, np.empty_like(values)
    _and(values, mask, right)
    for i in range(_SIZES, len(words), 4):
        _hash_right(right, words, i, hashed)
        _add(left, hashed, left)
        _subtract(left, left_size, hashed)
        _minimum(left, hashed, out=left)  # what was below left_size has become huge by the subtraction
        _hash_left(left, words, i + 2, hashed)
        _xor(right, hashed, right)
    _shift_left(left, bits, left)
    _or(left, right, values)


def _backward(values: _Words, words: list[_Words]) -> None:
    """Undo `_forward`, in place."""
    bits, mask, _, _, left_size = words[:_SIZES]
    left, right, hashed = values >> bits, values, np.empty_like(values)
    _and(values, mask, right)
    for i in reversed(range(_SIZES, len(words), 4)):
        _hash_left(left, words, i + 2, hashed)
        _xor(right, hashed, right)
        _hash_right(right, words, i, hashed)
        _subtract(left, hashed, left)
        _add(left, left_size, hashed)
        _minimum(left, hashed, out=left)  # what was negative is huge
    _shift_left(left, bits, left)
    _or(left, right, values)


def _hash_right(digits: _Words, words: list[_Words], at: int, out: _Words) -> None:
    """Hash to below the left digit's base, into `out`: 32 bits of a square, times the base, over 2**32."""
    _multiply(digits, words[at], out)
    _add(out, words[at + 1], out)
    _multiply(out, out, out)
    _shift_right(out, words[3], out)
    _multiply(out, words[4], out)
    _shift_right(out, words[3], out)


def _hash_left(digits: _Words, words: list[_Words], at: int, out: _Words) -> None:
    """Hash to as many bits of a square as the right digit has. Not cryptographic: a shuffle has no adversary."""
    _multiply(digits, words[at], out)
    _add(out, words[at + 1], out)
    _multiply(out, out, out)
    _shift_right(out, words[2], out)


def random_words(key: int, positions: NDArray[np.int64]) -> _Words:
    """Return the words at `positions`, from 0, of splitmix64's sequence that starts at `key`: uint64, in their shape.

    Source: Steele, Lea and Flood (2014), doi:10.1145/2714064.2660195
    """
    words: _Words = positions.astype(np.uint64) * _GOLDEN + np.uint64((key + int(_GOLDEN)) % 2**64)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words

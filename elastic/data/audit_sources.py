"""Are the examples of one rank's data set those of another's? Only then do their indices say who reads what.

Promises  each rank describes its data set by itself, without a word to the others, and equal descriptions come out
          where the data sets are the same: its type, its length, and the parts that a Subset takes of another one.
          Where that does not suffice, by some examples, which are read once more to see that they can be compared.
          Before each read the random generators are seeded alike, so that augmentation hides nothing; the data set's
          own, too. Who calls has it done in a fork.
Leaves    what follows from the answers to audit_rules.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils.data import Subset

from elastic.data.example_digest import digest_of
from elastic.data.own_generators import OwnGenerators
from elastic.errors import ConfigError

_LOOKED_AT = 8  # examples


def parts_of(dataset: Any, most: int) -> tuple[Any, NDArray[np.int64] | None]:
    """Return what a Subset, or one of another, is taken from, and the indices there of each of its examples.

    A Subset of more examples than `most` counts as the data set itself.
    """
    whole, indices = dataset, None
    while type(whole) is Subset and len(whole.indices) <= most:
        try:
            outer = np.asarray(whole.indices, dtype=np.int64)
        except (TypeError, ValueError):
            return dataset, None
        indices = outer if indices is None else outer[indices]
        whole = whole.dataset
    return whole, indices


def described(dataset: Any, indices: NDArray[np.int64] | None = None) -> str:
    """Describe a data set, or the part of it at `indices`, as far as can be said without reading."""
    length = len(dataset) if hasattr(dataset, "__len__") else "unknown"
    part = "" if indices is None else f", {len(indices)} of them: {xxhash.xxh3_64_hexdigest(indices.tobytes())}"
    return f"{type(dataset).__module__}.{type(dataset).__qualname__} of {length}{part}"


def sample(dataset: Any) -> str:
    """Return a digest of some examples, the same ones of data sets of one length; "" where they cannot be compared."""
    length = len(dataset) if hasattr(dataset, "__len__") else 0
    found = [digests(dataset, sorted({i * length // _LOOKED_AT for i in range(_LOOKED_AT)})) for _ in range(2)]
    if found[0] is None or found[1] is None or not np.array_equal(found[0], found[1]):
        return ""
    return xxhash.xxh3_64_hexdigest(found[0].tobytes())


def digests(dataset: Any, indices: Iterable[int]) -> NDArray[np.int64] | None:
    """Return 64 bits of each example, whatever was read before it; None where one raises, or has no known bytes."""
    own = OwnGenerators(dataset)
    found: list[int] = []
    with own.put_back():
        for index in indices:
            random.seed(0)
            np.random.seed(0)
            torch.default_generator.manual_seed(0)
            own.seed(0)
            try:
                digest = digest_of(dataset[index])
            except Exception:  # of the data set's code, which may raise anything; training will tell
                return None
            if digest is None:
                return None
            found.append(int(digest, 16))
    return np.array(found, dtype=np.uint64).view(np.int64)


def digests_of_batch(batch: Any) -> list[int]:
    """Return 64 bits of each example of a batch; of the whole batch, where it does not tell examples apart."""
    columns = list(_columns(batch))
    if not columns:
        raise ConfigError(
            f"a batch that is a {type(batch).__name__} holds nothing to compare; expected tensors, arrays, numbers or "
            "strings, in dicts, lists or tuples\n"
            "  next   give the loader a collate_fn that makes such a batch"
        )
    lengths = {len(column) for column in columns}
    rows = zip(*columns, strict=True) if len(lengths) == 1 else [[b"".join(column) for column in columns]]
    return [_signed(xxhash.xxh3_64_intdigest(b"|".join(row))) for row in rows]


def _columns(batch: Any) -> Iterator[list[bytes]]:
    """Yield the bytes of each example's part, for one tensor or list of values after the other."""
    if isinstance(batch, np.ndarray) and batch.dtype != object:
        yield [row.tobytes() for row in np.atleast_1d(batch)]
    elif isinstance(batch, torch.Tensor):
        flat = batch.detach().cpu().reshape(len(batch) if batch.ndim else 1, -1).contiguous()
        yield [row.tobytes() for row in flat.view(torch.uint8).numpy()]
    elif isinstance(batch, Mapping):
        for key in batch:
            yield from _columns(batch[key])
    elif isinstance(batch, list | tuple):
        if batch and all(isinstance(one, _PLAIN) for one in batch):
            yield [repr(one).encode() for one in batch]
        else:
            for one in batch:
                yield from _columns(one)
    elif isinstance(batch, _PLAIN):
        yield [repr(batch).encode()]


_PLAIN = (str, bytes, bool, int, float, np.generic)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits

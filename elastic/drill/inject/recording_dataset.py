"""Which example was really read, and what was in it? A dataset and its collate function, wrapped, that keep notes.

Of the data a drill believes nothing but the dataset: the wrapped one notes an index when it is asked for it, in loader
processes too, with a digest of what came back; the notes travel through the collate function with the batch. So a drill
reads example by example, where an unobserved TensorDataset is sliced.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from elastic.data.example_digest import digest_of
from elastic.events.drill_schema import Dataset

_HANG_S = 3600.0  # nobody waits that long; it ends by a signal
_UNWRAPPED_MAX = 8  # datasets that wrap datasets


class RecordedExample(NamedTuple):
    """An example, the index at which it was read, and the digest of what came."""

    at: int
    content: str | None
    example: Any


class RecordedBatch(NamedTuple):
    """A batch, the indices that were read for it, in order, and the digests of what came."""

    indices: list[int]
    contents: list[str | None]
    batch: Any


class RecordingDataset:
    """A dataset that says with each example which one it is. While it is `stuck`, no read comes back."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.stuck = False

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> RecordedExample:
        if self.stuck:
            time.sleep(_HANG_S)
        example = self.dataset[index]
        return RecordedExample(int(index), digest_of(example), example)


class RecordingCollate:
    """A collate function that keeps the notes beside the batch."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, examples: list[RecordedExample]) -> RecordedBatch:
        batch = self.collate_fn([noted.example for noted in examples])
        return RecordedBatch([noted.at for noted in examples], [noted.content for noted in examples], batch)


def dataset_source(dataset: Any) -> Dataset:
    """Return the event that says where the code stands that reads an example.

    Where datasets only wrap another one (torch's Subset, say) that is the outermost one that is not torch's own.
    """
    for _ in range(_UNWRAPPED_MAX):
        inner = getattr(dataset, "dataset", None)
        if not type(dataset).__module__.startswith("torch.") or inner is None:
            break
        dataset = inner
    kind = type(dataset)
    try:
        code = inspect.unwrap(kind.__getitem__).__code__
    except (AttributeError, ValueError):
        return Dataset(dataset=kind.__qualname__)
    file = str(Path(code.co_filename).absolute())
    return Dataset(dataset=kind.__qualname__, file=file, line=code.co_firstlineno)

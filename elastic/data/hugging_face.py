"""An IterableDataset of Hugging Face's as streams: its shards are dealt out to the virtual workers.

Promises  each shard is read by one virtual worker, whatever the number of workers. What would lose or repeat examples
          is refused by name, before anything is read. Nothing of the package datasets is imported here.
Leaves    going on from a position to the dataset's own state_dict: within a shard it may read again what lies before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import xxhash

from elastic.data.stream_check import check_kind, stages_of
from elastic.errors import ConfigError


def check_dataset(dataset: Any) -> None:
    """Raise ConfigError if the dataset is none whose shards can be dealt out."""
    kind = type(dataset).__name__
    if hasattr(dataset, "__len__") and not isinstance(dataset, dict):
        raise ConfigError(
            f"the {kind} has a length, and gives any example by its number\n"
            "  next  dataset= takes it as it is: every example comes once in an epoch, in an order of the run's own"
        )
    if not hasattr(dataset, "shard") or not hasattr(dataset, "num_shards"):
        raise ConfigError(
            f"the {kind} is no IterableDataset of Hugging Face's\n"
            '  next  load_dataset(…, streaming=True, split="train"): without split= it is a dict of them'
        )
    if getattr(dataset, "_distributed", None) is not None:
        raise ConfigError(
            f"the {kind} is one node's part of a dataset: the others' examples would be trained on by nobody\n"
            "  next  hand over the whole, without split_dataset_by_node: its shards are dealt out here"
        )
    check_kind(dataset, 0)


def part_of(dataset: Any, worker: int, workers: int) -> Any:
    """Return one virtual worker's shards. Raises ConfigError where there are fewer shards than virtual workers."""
    if dataset.num_shards < workers:
        raise ConfigError(
            f"{dataset.num_shards} shards for {workers} virtual workers, of which each reads its own\n"
            f"  next  {workers} files or more, of about equal size; or dataset.reshard(), where files have row groups"
        )
    return dataset.shard(num_shards=workers, index=worker, contiguous=False)


def identity_of(dataset: Any) -> dict[str, Any]:
    """Return where the dataset says it comes from, its stages, and a digest of the names of what its shards read.

    Positions are places in shards. The names count without their folders, which may lie elsewhere on another machine.
    """
    info = dataset.info
    described = {
        "builder": info.builder_name,
        "config": info.config_name,
        "version": info.version,
        "split": dataset.split,
    }
    stages = list(stages_of(dataset))
    sources = xxhash.xxh3_64()
    for text in (text for stage in stages for text in _texts(getattr(stage, "kwargs", None))):
        sources.update(f"{os.path.basename(text)}\n".encode())
    own = {
        "shards": dataset.num_shards,
        "stages": [type(one).__name__ for one in stages],
        "sources": sources.hexdigest(),
    }
    return own | {name: None if one is None else str(one) for name, one in described.items()}


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in plain containers: names of files, mostly."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)

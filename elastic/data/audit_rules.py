"""What is wrong with what the ranks' loaders give? Pure: records in, findings out.

Reading the loaders and bringing the records together is audit.py's work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elastic.errors import ConfigError

Kind = Literal["same_data", "overlap", "repeats", "gap", "uneven", "unshuffled", "same_order"]

_ORDERED = 5  # so few examples may come in the same order by chance
_SPLIT = "give each rank its own part: ElasticLoader, DistributedSampler, or an IterableDataset that is split by rank"


@dataclass(kw_only=True)
class Record:
    """What one rank's loader gives.

    compared  "indices", or "digests" of examples
    length    of the dataset, where its indices are known
    epochs    of each, its examples in order: int64, or the 64 bits of their digests
    batches   of each epoch, how many
    largest   examples in the largest batch
    whole     the epochs were seen to their ends
    """

    compared: str
    length: int | None
    epochs: list[NDArray[np.int64]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    largest: int = 0
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a loader does and training should not.

    Attributes:
        kind: Its name, for `allow=`.
        message: What was found, and what to do next.
        slight: It is no more than what samplers do on purpose to give every rank batches of one size: a few examples
            twice, or the tail of an epoch left out. `check` does not mind.
    """

    kind: Kind
    message: str
    slight: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{' (slight)' if self.slight else ''}: {self.message}"


def judge(records: Sequence[Record]) -> list[Finding]:
    """Of each kind the first, by epoch. Raises ConfigError if the records cannot be compared."""
    if len({record.compared for record in records}) > 1:
        raise ConfigError("some ranks' loaders tell their indices and others do not; expected the same loader on all")
    findings: dict[Kind, Finding] = {}
    for epoch in range(len(records[0].epochs)):
        for finding in _of_epoch(records, epoch):
            findings.setdefault(finding.kind, finding)
    if "unshuffled" not in findings:  # which says it already
        for finding in _same_order(records):
            findings.setdefault(finding.kind, finding)
    return list(findings.values())


def _of_epoch(records: Sequence[Record], epoch: int) -> Iterator[Finding]:
    read = [record.epochs[epoch] for record in records]
    own = [np.unique(examples) for examples in read]
    everything, times = np.unique(np.concatenate(own), return_counts=True)
    slack = len(records) * max(record.largest for record in records)

    def slight(count: int) -> bool:
        return count < slack and 2 * count < len(everything)

    twins = _twins(read)
    shared = everything[times > 1]
    if twins:
        yield Finding(
            kind="same_data",
            message=f"ranks {_listed(twins)} of {len(read)} read the same {len(read[twins[0]])} examples in the same "
            f"order (epoch {epoch}): each update counts them {len(twins)} times\n"
            f"  next   {_SPLIT}",
        )
    elif len(shared):
        both = [rank for rank, examples in enumerate(own) if shared[0] in examples]
        yield Finding(
            kind="overlap",
            slight=slight(len(shared)),
            message=f"{len(shared)} of {len(everything)} examples are read by more than one rank, one of them by "
            f"ranks {_listed(both)} (epoch {epoch})\n"
            f"  next   {_SPLIT}",
        )
    repeated = sum(map(len, read)) - sum(map(len, own))
    if repeated:
        yield Finding(
            kind="repeats",
            slight=slight(repeated),
            message=f"{repeated} of {sum(map(len, read))} examples are read again by the same rank (epoch {epoch})\n"
            "  next   an IterableDataset is read whole by every loader process: split it by get_worker_info(), too; "
            'allow=("repeats",) if a sampler draws with replacement',
        )
    length = records[0].length
    whole = all(record.whole for record in records)
    if length is not None and whole and len(everything) < length:
        yield Finding(
            kind="gap",
            slight=slight(length - len(everything)),
            message=f"{length - len(everything)} of {length} examples are read by no rank (epoch {epoch})\n"
            "  next   drop_last=False reads the tail",
        )
    counts = [record.batches[epoch] for record in records]
    least, most = min(counts), max(counts)
    bounded = records[0].compared == "indices" and not whole  # by the number of indices, and so not at one batch
    if least < most and not bounded:
        yield Finding(
            kind="uneven",
            message=f"rank {counts.index(least)} gives {least} batches and rank {counts.index(most)} {most} "
            f"(epoch {epoch}): under DDP the others wait for ever\n"
            "  next   pad or drop the tail, as DistributedSampler and ElasticLoader do",
        )
    ordered = [rank for rank, order in enumerate(read) if len(order) >= _ORDERED and bool((np.diff(order) > 0).all())]
    if ordered and records[0].compared == "indices":
        yield Finding(
            kind="unshuffled",
            message=f"ranks {_listed(ordered)} of {len(read)} read in the dataset's order (epoch {epoch})\n"
            '  next   shuffle=True, of the sampler where there is one; allow=("unshuffled",) for an evaluation',
        )


def _same_order(records: Sequence[Record]) -> Iterator[Finding]:
    for rank, record in enumerate(records):
        for epoch, order in enumerate(record.epochs[1:], 1):
            if len(order) >= _ORDERED and np.array_equal(order, record.epochs[0]):
                yield Finding(
                    kind="same_order",
                    message=f"rank {rank} reads epoch {epoch} in the order of epoch 0\n"
                    "  next   call sampler.set_epoch(epoch) at the beginning of each epoch; if the loop does, say so: "
                    "audit(loader, set_epoch=sampler.set_epoch)",
                )


def _twins(read: Sequence[NDArray[np.int64]]) -> list[int]:
    """The most ranks that read the same."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for rank, examples in enumerate(read):
        if len(examples):
            groups[examples.tobytes()].append(rank)
    most = max(groups.values(), key=len, default=[])
    return most if len(most) > 1 else []


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")

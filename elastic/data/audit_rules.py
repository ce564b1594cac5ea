"""What is wrong with what the ranks' loaders give? Pure: records in, findings out.

Reading the loaders and bringing the records together is audit.py's work.

Slight is what padding and dropping explain, as samplers do both so that every rank gives batches of one size. They do
either, never both: one that pads reads everything, one that drops reads nothing twice. W ranks whose batches hold B
examples, as many on every rank, and all of them full, pad or drop fewer than W * B, or there would be a batch more or
less of each. Where the last batches are not full, only the ranks' numbers of examples were made equal: fewer than W.
What is padded comes last: without the ranks' last batches nothing is read twice. And neither concerns half of the data,
however short it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elastic.errors import ConfigError

Kind = Literal["same_data", "overlap", "repeats", "gap", "uneven", "unshuffled", "same_order", "changed"]

_ORDERED = 5  # so few examples may come in the same order by chance
_SOURCE = 2**48  # more than any data set's examples
_SPLIT = "give each rank its own part: ElasticLoader, DistributedSampler, or an IterableDataset that is split by rank"


@dataclass(kw_only=True)
class Record:
    """The record of what one rank's loader gives.

    compared    "indices", or "digests" of examples
    length      of the dataset, where its indices are known
    epochs      of each, its examples in order: int64, or the 64 bits of their digests
    sizes       of each epoch, the examples in each batch
    whole       the epochs were seen to their ends
    dataset     says which, where its indices are known
    source      says what that takes its examples from: another one, of which it is a Subset, or itself
    ids         of its examples, by index: their indices in the source, where they are others
    contents    digests of the first examples that it gives, where the ranks' sources differ and they can be compared
    changed     epoch 0 was another one when it was read again, from the same state
    batch_size  of a full batch, where the loader says it: whether an epoch's only one is full cannot be seen
    """

    compared: str
    length: int | None
    batch_size: int | None = None
    dataset: str = ""
    source: str = ""
    ids: NDArray[np.int64] | None = None
    contents: NDArray[np.int64] | None = None
    changed: bool = False
    epochs: list[NDArray[np.int64]] = field(default_factory=list)
    sizes: list[NDArray[np.int64]] = field(default_factory=list)
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a loader does and training should not.

    Attributes:
        kind: Its name, for `allow=`.
        message: What was found, and what to do next.
        slight: It is what samplers do on purpose to give every rank batches of one size, and no more: the last batches
            are filled with examples that were read already, or the tail of an epoch that fills none is left out. Fewer
            examples than ranks, or than a batch of every rank where all are full; never both, and never half of the
            data. `check` does not mind.
    """

    kind: Kind
    message: str
    slight: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{' (slight)' if self.slight else ''}: {self.message}"


def judge(records: Sequence[Record]) -> list[Finding]:
    """Return the first finding of each kind, by epoch. Raises ConfigError if the records cannot be compared."""
    if len({record.compared for record in records}) > 1:
        raise ConfigError("some ranks' loaders tell their indices and others do not; expected the same loader on all")
    findings: dict[Kind, Finding] = {}
    for epoch in range(len(records[0].epochs)):
        for finding in _of_epoch(records, epoch):
            findings.setdefault(finding.kind, finding)
    if apart(records):
        for finding in _same_contents(records):
            findings.setdefault(finding.kind, finding)
    if "unshuffled" not in findings:  # which says it already
        for finding in _same_order(records):
            findings.setdefault(finding.kind, finding)
    if changed := [rank for rank, record in enumerate(records) if record.changed]:
        findings["changed"] = Finding(
            kind="changed",
            message=f"ranks {_listed(changed)} of {len(records)} give another epoch 0 when it is read again: "
            "they draw from the system's entropy, or read from outside of this process\n"
            '  next   seed the sampler\'s generators; allow=("changed",) if no order needs to be repeated',
        )
    return list(findings.values())


def apart(records: Sequence[Record]) -> bool:
    """Tell whether the ranks' indices are of several data sets: equal ones may be of other examples."""
    return len({record.source for record in records}) > 1


def compared(records: Sequence[Record]) -> str:
    """Return in words what was compared."""
    if not apart(records):
        return records[0].compared
    known = all(record.contents is not None for record in records)
    return "indices within each data set and digests across them," if known else "indices within each data set, only,"


class _Epoch:
    """One epoch, as all ranks read it.

    read        by rank, in order
    own         by rank, each example once
    everything  that any rank read
    times       by how many ranks, each of these
    """

    def __init__(self, records: Sequence[Record], epoch: int) -> None:
        self.number = epoch
        self.records = records
        self.read = _named(records, epoch)
        self.own = [np.unique(examples) for examples in self.read]
        self.everything, self.times = np.unique(np.concatenate(self.own), return_counts=True)
        self.whole = all(record.whole for record in records)

    @cached_property
    def again(self) -> int:
        """Count the readings beyond the first of each example, by whichever rank."""
        return sum(map(len, self.read)) - len(self.everything)

    @cached_property
    def padded(self) -> bool:
        """Tell whether all that is read twice is padding."""
        return (
            self.whole
            and self._few(self.again)
            and self.missing <= self._carried()
            and np.unique(bodies := np.concatenate(self._bodies()), return_counts=True)[1].max(initial=1) == 1
            and len(bodies) > 0
        )

    @property
    def dropped(self) -> bool:
        """Tell whether all that nobody reads is a tail, or was carried into the epoch before."""
        return self._few(self.missing) and (self.again == 0 or (self.missing <= self._carried() and self.padded))

    @property
    def missing(self) -> int:
        """Count the examples that no rank reads; 0 where their number is not known."""
        return self.length - len(self.everything) if self.length is not None and self.whole else 0

    @cached_property
    def length(self) -> int | None:
        """Count the examples that there are for all ranks together; None where that is not known."""
        if len({record.dataset for record in self.records}) == 1:
            return self.records[0].length
        lengths = [
            _length([record for record in self.records if record.source == one]) for one in _sources(self.records)
        ]
        return None if None in lengths else sum(length for length in lengths if length is not None)

    def _few(self, count: int) -> bool:
        """Tell whether samplers may pad or drop so many, which are never half of the data."""
        sizes = [record.sizes[self.number] for record in self.records]
        even = len({len(of_rank) for of_rank in sizes}) == 1
        steps = np.sum(sizes, axis=0) if even else np.zeros(0, dtype=np.int64)
        asked = sum(record.batch_size or 0 for record in self.records)
        full = len(steps) > 0 and steps.min() == steps.max() and (len(steps) > 1 or steps[0] == asked)
        # Where all batches are full, a whole step's examples more would be one batch more. Where they are not, only the
        # ranks' numbers of examples were made equal.
        bound = int(steps[0]) if full else len(sizes)
        return count < bound and 2 * count < len(self.everything)

    def _bodies(self) -> list[NDArray[np.int64]]:
        """Return what each rank reads before its last batch or, of one batch, its last example."""
        return [
            read[: len(read) - (int(record.sizes[self.number][-1]) if len(record.sizes[self.number]) > 1 else 1)]
            for read, record in zip(self.read, self.records, strict=True)
            if len(read)
        ]

    def _carried(self) -> int:
        """Count the missing examples that the epoch before read in its last batches, to fill them up."""
        if not self.number:
            return 0
        last = self.number - 1
        before = [
            read[len(read) - int(record.sizes[last][-1]) :]
            for read, record in zip(_named(self.records, last), self.records, strict=True)
            if len(record.sizes[last])
        ]
        return len(np.setdiff1d(np.concatenate(before), self.everything)) if before else 0


def _of_epoch(records: Sequence[Record], epoch: int) -> Iterator[Finding]:
    """Yield the findings of one epoch."""
    seen = _Epoch(records, epoch)
    yield from _read_twice(seen)
    yield from _left_out(seen)
    yield from _of_batches(seen)
    yield from _unshuffled(seen)


def _read_twice(seen: _Epoch) -> Iterator[Finding]:
    """Yield findings of examples that are read twice, by several ranks or by one."""
    epoch, read, own = seen.number, seen.read, seen.own
    twins, shared = _same_reads(read), seen.everything[seen.times > 1]
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
            slight=seen.padded,
            message=f"{len(shared)} of {len(seen.everything)} examples are read by more than one rank, one of them by "
            f"ranks {_listed(both)} (epoch {epoch})\n"
            f"  next   {_SPLIT}",
        )
    repeated = sum(map(len, read)) - sum(map(len, own))
    if repeated:
        yield Finding(
            kind="repeats",
            slight=seen.padded,
            message=f"{repeated} of {sum(map(len, read))} examples are read again by the same rank (epoch {epoch})\n"
            "  next   an IterableDataset is read whole by every loader process: split it by get_worker_info(), too; "
            'allow=("repeats",) if a sampler draws with replacement',
        )


def _left_out(seen: _Epoch) -> Iterator[Finding]:
    """Yield a finding of examples that no rank reads."""
    if seen.missing:
        yield Finding(
            kind="gap",
            slight=seen.dropped,
            message=f"{seen.missing} of {seen.length} examples are read by no rank (epoch {seen.number})\n"
            "  next   drop_last=False reads the tail",
        )


def _of_batches(seen: _Epoch) -> Iterator[Finding]:
    """Yield a finding where ranks give different numbers of batches."""
    counts = [len(record.sizes[seen.number]) for record in seen.records]
    least, most = min(counts), max(counts)
    # Else the epoch was bounded by the number of indices, and so not at one batch.
    comparable = seen.whole or seen.records[0].compared != "indices"
    if least < most and comparable:
        yield Finding(
            kind="uneven",
            message=f"rank {counts.index(least)} gives {least} batches and rank {counts.index(most)} {most} "
            f"(epoch {seen.number}): under DDP the others wait for ever\n"
            "  next   pad or drop the tail, as DistributedSampler and ElasticLoader do",
        )


def _unshuffled(seen: _Epoch) -> Iterator[Finding]:
    """Yield a finding of ranks that read in the dataset's order."""
    orders = [record.epochs[seen.number] for record in seen.records]
    in_order = [rank for rank, order in enumerate(orders) if len(order) >= _ORDERED and (np.diff(order) > 0).all()]
    if in_order and seen.records[0].compared == "indices":
        yield Finding(
            kind="unshuffled",
            message=f"ranks {_listed(in_order)} of {len(seen.read)} read in the dataset's order (epoch {seen.number})\n"
            '  next   shuffle=True, of the sampler where there is one; allow=("unshuffled",) for an evaluation',
        )


def _same_order(records: Sequence[Record]) -> Iterator[Finding]:
    """Yield findings of epochs that come in the order of epoch 0."""
    for rank, record in enumerate(records):
        for epoch, order in enumerate(record.epochs[1:], 1):
            if len(order) >= _ORDERED and np.array_equal(order, record.epochs[0]):
                yield Finding(
                    kind="same_order",
                    message=f"rank {rank} reads epoch {epoch} in the order of epoch 0\n"
                    "  next   call sampler.set_epoch(epoch) at the beginning of each epoch; if the loop does, say so: "
                    "audit(loader, set_epoch=sampler.set_epoch)",
                )


def _same_contents(records: Sequence[Record]) -> Iterator[Finding]:
    """Yield findings of data sets that differ, by the first examples of each rank."""
    contents = [record.contents for record in records if record.contents is not None]
    if len(contents) < len(records):
        return
    if twins := [rank for rank in _same_reads(contents) if len(contents[rank])]:
        yield Finding(
            kind="same_data",
            message=f"ranks {_listed(twins)} of {len(records)} read the same first {len(contents[twins[0]])} examples, "
            f"of data sets of their own (epoch 0)\n  next   {_SPLIT}",
        )
        return
    by_source = [
        np.unique(
            np.concatenate([found for found, record in zip(contents, records, strict=True) if record.source == one])
        )
        for one in _sources(records)
    ]
    everything, times = np.unique(np.concatenate(by_source), return_counts=True)
    if shared := int((times > 1).sum()):
        yield Finding(
            kind="overlap",
            message=f"{shared} of the first {len(everything)} examples are in the data sets of several ranks, which "
            f'are not the same (epoch 0)\n  next   {_SPLIT}; allow=("overlap",) if the data holds doubles',
        )


def _named(records: Sequence[Record], epoch: int) -> list[NDArray[np.int64]]:
    """Return what each rank reads: one number for one example, whichever rank's data set it is in."""
    if len({record.dataset for record in records}) == 1:
        return [record.epochs[epoch] for record in records]
    first = {source: number * _SOURCE for number, source in enumerate(_sources(records))}
    return [
        (record.epochs[epoch] if record.ids is None else np.take(record.ids, record.epochs[epoch], mode="wrap"))
        + first[record.source]
        for record in records
    ]


def _sources(records: Sequence[Record]) -> list[str]:
    return sorted({record.source for record in records})


def _length(records: Sequence[Record]) -> int | None:
    """Count the examples that these records take of one source, together; None where that is not known."""
    parts = [record.ids for record in records if record.ids is not None]
    if len(parts) < len(records):
        return next(record.length for record in records if record.ids is None)
    return len(np.unique(np.concatenate(parts)))


def _same_reads(read: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the largest group of ranks that read the same in the same order; empty: no two do."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for rank, examples in enumerate(read):
        if len(examples):
            groups[examples.tobytes()].append(rank)
    most = max(groups.values(), key=len, default=[])
    return most if len(most) > 1 else []


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")

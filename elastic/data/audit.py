"""Do the ranks of a training script read what they should? Each loader's own answer, compared.

Promises  nothing is guessed from how a loader was made: compared are the indices that its sampler gives or, where it
          has none, digests of the examples that it gives.
          Looking leaves loaders and random generators as they were: it is done in a copy of the process
          (in_a_fork.py). The first epoch is looked at in a second copy, too: where it is another one there, that is
          found.
          Every rank comes to the same report, and every wait for another rank has a deadline.
Leaves    what is wrong with the answers to audit_rules.py, how a right loader is made to its user.

Indices of ranks whose data sets differ are not compared: those of Subsets are taken back to what they are parts of, and
of wholly other data sets the first examples are read (audit_sources.py).
Digests tell examples apart by their bits: random augmentation hides that two ranks read the same, and doubles in the
data look like it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeVar, get_args

import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from elastic.data.audit_rules import Finding, Kind, Record, apart, compared, judge
from elastic.data.audit_sources import described, digests, digests_of_batch, parts_of, sample
from elastic.data.in_a_fork import in_a_fork
from elastic.errors import ConfigError, ElasticError
from elastic.membership.worker.missing import ranks_named_by_torch

EXAMPLES_MAX = 2**22  # indices compared in an epoch, of all ranks together: 32 MB on each of them
_PATIENCE = 10  # timeouts of the other ranks, for the process in which loaders are read

_T = TypeVar("_T")


class AuditFailed(ElasticError):
    """An audit's verdict that training should not begin: repair the loaders, or name what is meant in `allow=`.

    Attributes:
        findings: What was found.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message)
        self.findings = findings


class AuditTimeout(ElasticError, TimeoutError):
    """Not all ranks took part in the audit by the deadline. It is called by all of them, or by none."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The findings of an audit, and what was compared for them.

    Attributes:
        findings: Nothing that was named in `allow=` is among them.
        ranks: Loaders that were compared.
        compared: "indices", or "digests" of examples; of ranks with other data sets also what was across them.
        examples: How many were looked at in an epoch, of all ranks together.
    """

    findings: tuple[Finding, ...]
    ranks: int
    compared: str
    examples: int

    def check(self) -> None:
        """Raise AuditFailed if anything was found that is more than slight."""
        if failed := tuple(finding for finding in self.findings if not finding.slight):
            raise AuditFailed(str(self), failed)

    def __str__(self) -> str:
        looked = f"{self.ranks} {'rank' if self.ranks == 1 else 'ranks'}, {self.compared} of {self.examples} examples"
        return "\n".join([f"{looked}: {'' if self.findings else 'nothing '}found", *map(str, self.findings)])


def audit(
    loader: Any,
    *,
    set_epoch: Callable[[int], object] | None = None,
    epochs: int = 2,
    batches: int = 16,
    allow: Collection[str] = (),
    timeout_s: float = 60.0,
) -> Audit:
    """Compare the ranks' loaders with what training needs: each its own part, once, each epoch in another order.

        elastic.audit(loader, set_epoch=sampler.set_epoch).check()

    Afterwards loaders, samplers and random generators are as they were: each epoch is what it would have been.

    Args:
        loader: This rank's, and every rank calls this; or a list of loaders, one for each rank, to compare them in one
            process. A DataLoader, an ElasticLoader, or anything that gives batches.
        set_epoch: What the training loop calls with each epoch's number. Without it, two epochs are looked at as they
            come.
        epochs: How many to look at. With 1, whether the order changes is not looked at.
        batches: How many to look at in an epoch, where there are no indices and batches must be read.
        allow: Kinds of findings that are meant, such as "unshuffled" for an evaluation's loader. With "changed" among
            them nothing is looked at again.
        timeout_s: How long to wait for the other ranks; and ten times that for the process in which loaders are read.

    Raises:
        AuditTimeout: Some rank did not call it in time, or was not done reading.
        ConfigError: The loaders give nothing that can be compared, or nothing in a second epoch, as generators do.
        LoaderError: The process in which they are read died, or gave nothing in time.
    """
    here = list(loader) if isinstance(loader, list | tuple) else [loader]
    _check(here, epochs, batches, allow)
    alone = len(here) > 1 or not (dist.is_available() and dist.is_initialized())
    if alone:
        records = _read(here, len(here), epochs, batches, set_epoch, "changed" in allow, timeout_s)
    else:
        records = _of_all_ranks(
            lambda: _read(here, dist.get_world_size(), epochs, batches, set_epoch, "changed" in allow, timeout_s),
            timeout_s,
        )

    def of_all(read: Callable[[], list[_T]]) -> list[_T]:
        return read() if alone else _of_all_ranks(read, timeout_s)

    _tell_sources_apart(here, records, of_all, allow, batches, timeout_s)
    findings = [finding for finding in judge(records) if finding.kind not in allow]
    return Audit(
        findings=tuple(findings),
        ranks=len(records),
        compared=compared(records),
        examples=sum(len(record.epochs[0]) for record in records),
    )


def _read(
    loaders: Sequence[Any],
    ranks: int,
    epochs: int,
    batches: int,
    set_epoch: Callable[[int], object] | None,
    changed_is_meant: bool,
    timeout_s: float,
) -> list[Record]:
    """Return a record for each loader. Raises ConfigError for one that gives its values once."""

    def read(epochs: int) -> list[Record]:
        records = partial(_records, loaders, ranks, epochs, batches, set_epoch)
        return in_a_fork(records, within_s=_PATIENCE * timeout_s)

    records = read(epochs)
    if not changed_is_meant:
        for record, again in zip(records, read(1), strict=True):
            record.changed = not np.array_equal(record.epochs[0], again.epochs[0])
    return records


def _let_alone(loader: Any) -> None:
    """Have a loader begin anew: iterations under way, and their loader processes, are those of the forked process."""
    variables = getattr(loader, "__dict__", {})
    for name, value in list(variables.items()):
        if isinstance(value, DataLoader):
            _let_alone(value)
        elif hasattr(type(value), "__next__") and name not in _PARTS:
            variables[name] = None
    if isinstance(loader, DataLoader):
        loader.pin_memory = False  # a fork cannot use its parent's GPU


_PARTS = ("sampler", "batch_sampler", "generator", "dataset", "collate_fn")  # of a DataLoader, which may be iterators


def _records(
    loaders: Sequence[Any], ranks: int, epochs: int, batches: int, set_epoch: Callable[[int], object] | None
) -> list[Record]:
    """Read so many epochs of each loader into its record; `set_epoch` is called before each.

    Raises ConfigError for a loader that gives its values once.
    """
    for loader in loaders:
        _let_alone(loader)
    most = EXAMPLES_MAX // ranks
    records: list[Record] = []
    for epoch in range(epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        for rank, loader in enumerate(loaders):
            indices = _indices(loader, epoch)
            if epoch == 0:
                records.append(_record(loader, indices is not None))
            if indices is None:
                _note(records[rank], (digests_of_batch(batch) for batch in loader), batches, most)
            else:
                _note(records[rank], indices, None, most)
            if epoch and len(records[rank].epochs[0]) and not len(records[rank].epochs[epoch]):
                whose = f" of rank {rank}" if len(loaders) > 1 else ""
                raise ConfigError(
                    f"the loader{whose} gives nothing in epoch {epoch}: it gives its values once\n"
                    "  state  nothing is changed\n"
                    "  next   keep what makes them in the loader, and make it in __iter__; or epochs=1"
                )
    return records


def _tell_sources_apart(
    loaders: Sequence[Any],
    records: Sequence[Record],
    of_all: Callable[[Callable[[], list[Any]]], list[Any]],
    allow: Collection[str],
    batches: int,
    timeout_s: float,
) -> None:
    """Add to the records which examples they are of, where ranks' indices are the same or their data sets are not.

    Every rank comes here with the same records, and so asks the others as often.
    """
    if len(records) == 1 or {record.compared for record in records} != {"indices"}:
        return
    alike = {finding.kind for finding in judge(records) if not finding.slight} & {"same_data", "overlap"}
    if not apart(records) and not alike - set(allow):
        return
    sources = [parts_of(loader.dataset, EXAMPLES_MAX)[0] for loader in loaders]
    if len(loaders) > 1 and len(set(map(id, sources))) == 1:
        return
    within_s = _PATIENCE * timeout_s
    samples = of_all(lambda: in_a_fork(lambda: [sample(source) for source in sources], within_s=within_s))
    if all(samples):
        for record, seen in zip(records, samples, strict=True):
            record.dataset, record.source = f"{record.dataset} {seen}", f"{record.source} {seen}"
    if not apart(records):
        return
    first = dist.get_rank() if len(loaders) < len(records) else 0
    own = records[first : first + len(loaders)]

    def contents() -> list[Any]:
        return [
            digests(loader.dataset, record.epochs[0][: record.sizes[0][:batches].sum()].tolist())
            for loader, record in zip(loaders, own, strict=True)
        ]

    for record, found in zip(records, of_all(lambda: in_a_fork(contents, within_s=within_s)), strict=True):
        record.contents = found


def _note(record: Record, batches: Iterable[Sequence[int]], batches_most: int | None, examples_most: int) -> None:
    """Add one epoch to the record: its batches up to so many batches, or so many examples."""
    examples: list[int] = []
    sizes: list[int] = []
    for batch in islice(batches, batches_most):
        sizes.append(len(batch))
        examples += batch
        if len(examples) >= examples_most:
            break
    record.whole &= (batches_most is None or len(sizes) < batches_most) and len(examples) < examples_most
    record.epochs.append(np.array(examples, dtype=np.int64))
    record.sizes.append(np.array(sizes, dtype=np.int64))


def _indices(loader: Any, epoch: int) -> Iterator[list[int]] | None:
    """Return the batches of an epoch as lists of indices, or None where the loader cannot tell them without reading."""
    if not _tells_indices(loader):
        return None
    if callable(shares := getattr(loader, "shares", None)):
        parts: Iterator[list[int]] = iter(shares(epoch))
        return parts
    if loader.batch_sampler is None:
        return ([index] for index in loader.sampler)
    return (list(batch) for batch in loader.batch_sampler)


def _tells_indices(loader: Any) -> bool:
    """Tell whether a loader gives indices without reading: by `shares`, or as a DataLoader of an indexed data set."""
    if callable(getattr(loader, "shares", None)):
        return True
    # Of accelerate's loaders, which wrap others, one gives other ranks what its sampler says.
    return issubclass(type(loader), DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _record(loader: Any, indices: bool) -> Record:
    """Make the record of a loader, with what is known of its data set, before any epoch."""
    if not indices:
        return Record(compared="digests", length=None)
    size = getattr(getattr(loader, "batch_sampler", loader), "batch_size", None)
    source, ids = parts_of(loader.dataset, EXAMPLES_MAX)
    return Record(
        compared="indices",
        dataset=described(source, ids),
        source=described(source),
        ids=ids,
        length=len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
        batch_size=size if type(size) is int and isinstance(loader, DataLoader) else None,
    )


def _of_all_ranks(read: Callable[[], list[_T]], timeout_s: float) -> list[_T]:
    """Return the one item that each rank reads, by rank. What one of them raises while it reads, all hear at once."""
    group = None
    try:
        # Of its own: the default one may be NCCL's, or have a deadline of half an hour.
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        found: list[_T] | Exception
        try:
            found = read()
        except Exception as error:
            found = error
        mine = _Failed(f"{type(found).__name__}: {found}") if isinstance(found, Exception) else found[0]
        dist.monitored_barrier(group, timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine, group=group)
    except RuntimeError as error:
        raise AuditTimeout(
            f"an audit of {dist.get_world_size()} ranks: not all of them took part within {timeout_s:g} s\n"
            f"  missing  {_missing(str(error))}\n"
            "  state    nothing was compared\n"
            "  next     call elastic.audit on every rank, at the same place; timeout_s= for loaders that are slow",
        ) from error
    finally:
        if group is not None:
            dist.destroy_process_group(group)
    if isinstance(found, Exception):
        raise found
    for rank, record in enumerate(gathered):
        if isinstance(record, _Failed):
            raise ConfigError(
                f"rank {rank}'s loader failed: {record.said}\n"
                f"  state  nothing was compared\n  next   see rank {rank}'s log"
            )
    return gathered


@dataclass(frozen=True)
class _Failed:
    """What a rank hands to the others whose loader raised."""

    said: str


def _missing(message: str) -> str:
    ranks = ", ".join(map(str, ranks_named_by_torch(message)))
    return f"rank {ranks}" if ranks else "rank 0's message names them"


def _check(loaders: Sequence[Any], epochs: int, batches: int, allow: Collection[str]) -> None:
    """Raise ConfigError for arguments that an audit cannot work with."""
    if unknown := set(allow) - set(get_args(Kind)):
        raise ConfigError(f"allow = {sorted(unknown)}; expected names of findings: {', '.join(get_args(Kind))}")
    for name, value in (("epochs", epochs), ("batches", batches)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} = {value!r}; expected an integer of 1 or more")
    if not loaders:
        raise ConfigError("an audit of no loaders; expected a loader, or a list of them, one for each rank")
    if len(loaders) != len(set(map(id, loaders))):
        raise ConfigError("an audit of a list that holds one loader twice; expected one for each rank")

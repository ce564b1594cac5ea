"""A state that another tool wrote becomes a checkpoint like any other: hashed, claimed, committed last.

The source is opened and everything about it checked first; then the claim is taken, as a job takes it, so a live job
keeps its URL; then one object after another is packed and written, each tensor being read as it is needed. Whatever
fails before the manifest is written leaves data that the next sweep removes, and the run as it was. Nothing is swept
here.

Memory: one object (128 MiB) and, of a DCP folder, one tensor twice. Mapped files are the kernel's to keep or let go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from elastic_checkpoint.checkpointer import Checkpointer
from elastic_checkpoint.cli.opened_run import OpenedRun
from elastic_checkpoint.cli.screen import Screen
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.shards import SHARD_BYTES
from elastic_checkpoint.runs.history import Log, read_history
from elastic_checkpoint.save.commit import commit
from elastic_checkpoint.save.planner import Planner, documents
from elastic_checkpoint.save.ranks import write_all
from elastic_checkpoint.sources.source import Source

JOB = "elastic checkpoint import"
WHOLE = "."  # as the name of a part: the source's own parts are the state's

_PART = "model"


class NotImported(CheckpointError):
    """Nothing was imported: the run has checkpoints, which the imported one would be taken in place of."""


@dataclass(frozen=True)
class Imported:
    """What was imported; parts: names of the state's parts; tensors: how many it holds, tied ones once."""

    commit: Commit
    parts: tuple[str, ...]
    tensors: int


def import_state(
    run: OpenedRun,
    holder: Checkpointer,
    source: Source,
    *,
    step: int,
    part: str | None,
    supersede: bool,
    screen: Screen,
    origin: str,
) -> Imported:
    """Commit the source's state. Raises NotImported, UnsupportedValue, ClaimHeld, ClaimLost, StorageError, BadSource.

    holder     takes the claim on the run's storage, as a job does
    part       the name under which the state holds what the source does; None: see `as_state`
    supersede  also where there are checkpoints, which this one is then the newer of, whatever their steps
    origin     the source's name, for people
    """
    state = as_state(source.tree, part)
    documents(step, state, {})  # whatever cannot be saved is refused before anything is claimed
    _refuse_if_there_is_something(run, supersede, screen.warn)
    claim = holder.claim()
    if claim.resumed_from is not None and not supersede:
        _refuse_if_there_is_something(run, supersede, screen.warn)
    meta = {"imported": {"format": source.form, "from": origin}}
    save = Planner(SHARD_BYTES).save(claim=claim, step=step, state=state, meta=meta, now_s=time.time())
    fetched = _Fetched(save.tensors, source.fetch)
    with screen.progress("importing", save.commit.bytes) as advance, run.counting(advance):
        commit(run.storage, save.draft, write_all(run.storage, save.draft.id, save.plan, fetched))
    return Imported(save.commit, tuple(state) if isinstance(state, dict) else (), len(save.tensors))


def as_state(tree: Tree, part: str | None) -> Tree:
    """Return what is saved; a source whose top level holds dicts is a state already.

    As {"model": ..., "optimizer": ..., "epoch": 3} is; any other is a model's own state_dict().
    """
    if part is None:
        extra = "_extra_state"
        has_parts = isinstance(tree, dict) and any(
            isinstance(value, dict) and not str(name).endswith(extra) for name, value in tree.items()
        )
        part = WHOLE if has_parts else _PART
    return tree if part == WHOLE else {part: tree}


class _Fetched(Mapping[str, torch.Tensor]):
    """The tensors to be packed, each read when it is asked for, and kept until another one is."""

    def __init__(self, standing: Mapping[str, torch.Tensor], fetch: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._standing = standing
        self._fetch = fetch
        self._last: tuple[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._last is None or self._last[0] != name:
            self._last = None  # before the next one is read
            self._last = name, self._fetch(self._standing[name])
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._standing)

    def __len__(self) -> int:
        return len(self._standing)


def _refuse_if_there_is_something(run: OpenedRun, supersede: bool, warn: Log) -> None:
    if supersede:
        return
    lineage = read_history(run.storage, warn).lineage
    if lineage:
        raise NotImported(
            f"{run.url} has checkpoints: the newest is of step {lineage[0].step}\n"
            "  state  nothing was imported, and the run is as it was\n"
            "  next   give another URL. With --supersede the imported one becomes what the run goes on from, whatever "
            "its step; the others stay until the run sweeps them"
        )

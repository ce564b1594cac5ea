"""Loads one checkpoint into a state that several ranks hold together; the same one on every rank, or none at all.

    rank 0 names a checkpoint, whose manifest it has read  ->  every rank: does it fit, what do I want?
      ->  rank 0: who reads what, and for whom  ->  read, verified, passed on  ->  all whole?  ->  applied everywhere

Rank 0 alone reads and judges the manifest; the others get it packed (exchange.py). A rank allocates and reads what it
loads, and nothing else. Every chunk that anybody wants is read by one rank, and sent to those who want it too: a
replicated state is read once over all ranks. Damage that any rank finds makes all of them go on to the next older
checkpoint. Nothing of the state is touched before all ranks have verified all that they want.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint
from elastic_checkpoint.format.decoding import decode
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.manifest import Manifest, corrupt_manifest
from elastic_checkpoint.format.marks import Resolver
from elastic_checkpoint.format.names import CommitId, id_document, id_from
from elastic_checkpoint.format.pieces import StoredTensor
from elastic_checkpoint.format.tensors import like, torch_dtype
from elastic_checkpoint.load.apply import apply, match
from elastic_checkpoint.load.group.exchange import ReadPlan, exchange, packed, unpacked
from elastic_checkpoint.load.group.ranges import TensorBuffers
from elastic_checkpoint.load.into_state import LoadRules
from elastic_checkpoint.load.loaded import Loaded, Skipped
from elastic_checkpoint.load.objects import Chunk, Run, check_sizes, chunks_of, run_range
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.rank_channel import RankChannel
from elastic_checkpoint.runs.history import read_manifest
from elastic_checkpoint.storage import Storage

_RUN_BYTES = 2**25  # that are read, and sent, in one go, where chunks are smaller


def load_together(channel: RankChannel, storage: Storage, state: Tree, rules: LoadRules) -> Loaded:
    """Load one checkpoint into the state on all ranks, and return its step. Collective.

    raises  the same on all ranks: what the search raises, StateMismatch, StorageError, CheckpointError for lost ranks;
            nothing was touched then, unless an object refuses
    memory  beside the state a copy of what this rank wants, and a few runs
    """
    step: int | None = None
    mine: Message | BaseException
    try:
        step = None if rules.step is None else operator.index(rules.step)  # numpy's integers are no JSON
        rules.prepare()
        mine = {"step": step}
    except BaseException as error:  # whatever it is, the others must not wait for this rank
        mine = error
    candidates = _Candidates(storage, rules, step)
    while True:
        chosen = channel.agree(
            "which checkpoint is loaded", mine, lambda said: candidates.next([message["step"] for message in said])
        )
        id = id_from(chosen["id"])
        assert id is not None
        manifest = _from_rank_0(channel, id, candidates, chosen["bytes"])
        found = _try(channel, storage, state, manifest, rules)
        if isinstance(found, Skipped):
            if any(found) and channel.rank == 0:
                rules.log(found.line(id.step))
            if candidates.newest is not None:
                rules.loaded(id, candidates.newest)
            return Loaded(id.step, found)
        candidates.reject(id, found)


class _Candidates:
    """The checkpoints that may be loaded, by rank 0's search.

    newest            the newest commit of all, when one was chosen; and
    manifest, packed  of the one that was chosen; on rank 0
    """

    def __init__(self, storage: Storage, rules: LoadRules, step: int | None) -> None:
        self.manifest: Manifest | None = None
        self.packed = b""
        self._storage, self._step = storage, step
        self._search = rules.search(step)

    @property
    def newest(self) -> CommitId | None:
        return self._search.newest

    def next(self, steps: list[int | None]) -> list[Message]:
        """Choose the newest whole checkpoint; return the answer for each rank.

        Raises as the search does, and CheckpointError if the ranks load different steps.
        """
        if any(step != self._step for step in steps):
            raise CheckpointError(f"the ranks load different steps: {steps}\n  state  nothing was changed")
        self.manifest = self._search.first_whole(self._checked)
        self.packed = packed(self.manifest) if len(steps) > 1 else b""
        return [{"id": id_document(self.manifest.id), "bytes": len(self.packed)}] * len(steps)

    def reject(self, id: CommitId, why: str) -> None:
        self._search.reject(id, CorruptCheckpoint(why, commit=str(id)))

    def _checked(self, id: CommitId) -> Manifest:
        """Read a manifest, and see that all objects are there. Raises CorruptCheckpoint."""
        manifest = read_manifest(self._storage, id)
        check_sizes(self._storage, manifest)  # before anything is allocated for it
        return manifest


def _from_rank_0(channel: RankChannel, id: CommitId, candidates: _Candidates, size: int) -> Manifest:
    """Return the manifest that rank 0 has read, on all ranks; size: of it on its way."""
    data = torch.empty(size, dtype=torch.uint8)
    if candidates.manifest is not None:
        data.numpy()[:] = np.frombuffer(candidates.packed, np.uint8)
        candidates.packed = b""
    if channel.size > 1:
        channel.bytes.broadcast(data, source=0)
    return candidates.manifest if candidates.manifest is not None else unpacked(data.numpy().data, id)


def _try(channel: RankChannel, storage: Storage, state: Tree, manifest: Manifest, rules: LoadRules) -> Skipped | str:
    """Load this checkpoint on all ranks, and return what was left alone; or tell all of damage, and return that."""
    id = manifest.id
    mine: Message | BaseException
    try:
        names, sharded, values_decide = _wants(channel, state, manifest, rules)
        wanted = TensorBuffers(manifest, names, sharded)
        mine = {"damage": None, "runs": wanted.runs}
    except CorruptCheckpoint as error:
        mine = {"damage": str(error)}
    except BaseException as error:  # whatever it is, the others must not wait for this rank
        mine = error
    assigned = channel.agree(f"what is wanted of {id}", mine, lambda said: _assign_reads(said, manifest))
    if assigned["damage"] is not None:
        return str(assigned["damage"])

    try:
        exchange(channel, storage, manifest, wanted, ReadPlan.of(assigned))
        tensors = _as_here(manifest, sharded, wanted)
        if values_decide:  # now, when nobody has changed anything yet
            filled, kept = _resolved(channel, manifest, tensors, rules)
            match(state, filled, strict=rules.strict, cast=rules.cast, kept=kept).refuse_values()
        mine = {"damage": None}
    except CorruptCheckpoint as error:
        mine = {"damage": str(error)}
    except BaseException as error:
        mine = error
    verified = channel.agree(f"whether {id} is whole", mine, _first_damage)
    if verified["damage"] is not None:
        return str(verified["damage"])

    skipped = Skipped()
    try:
        tree, kept = _resolved(channel, manifest, tensors, rules)
        skipped = apply(state, tree, strict=rules.strict, cast=rules.cast, kept=kept)
        mine = {}
    except BaseException as error:
        mine = error
    here = f"this rank holds {id}; whether all others do is not known, so load again before training goes on"
    channel.agree(f"that {id} is loaded", mine, lambda said: said, last=True, state=here)
    return skipped


def _resolved(
    channel: RankChannel,
    manifest: Manifest,
    tensors: dict[str, torch.Tensor],
    rules: LoadRules,
    arrays: dict[int, str] | None = None,
) -> tuple[Tree, list[str]]:
    """Return the tree that was saved, as this rank gets it, and the entries that are left as they are.

    arrays  see `decode`
    """
    resolver = Resolver(channel.rank, channel.size, rules.resized)
    return resolver.resolve(decode(manifest.tree, tensors, arrays=arrays)), resolver.kept


def _as_here(manifest: Manifest, sharded: dict[str, torch.Tensor], wanted: TensorBuffers) -> dict[str, torch.Tensor]:
    """Return all tensors: those read, as DTensors where only this rank's part is wanted, and the rest without data."""
    read = {name: like(sharded[name], part) if name in sharded else part for name, part in wanted.tensors.items()}
    return {name: read[name] if name in read else _empty(stored) for name, stored in manifest.tensors.items()}


def _empty(stored: StoredTensor) -> torch.Tensor:
    return torch.empty(stored.shape, dtype=torch_dtype(stored.dtype), device="meta")


def _wants(
    channel: RankChannel, state: Tree, manifest: Manifest, rules: LoadRules
) -> tuple[list[str], dict[str, torch.Tensor], bool]:
    """Return which tensors this rank loads, which of them in part, and whether only their values tell if they fit.

    Those in part come each with the DTensor whose part this rank wants. Raises `StateMismatch` where the checkpoint is
    of another state, `CorruptCheckpoint` where it is none of ours.
    """
    empty = {name: _empty(stored) for name, stored in manifest.tensors.items()}
    names = {id(tensor): name for name, tensor in empty.items()}
    try:
        tree, kept = _resolved(channel, manifest, empty, rules, names)
    except CorruptCheckpoint as error:
        raise corrupt_manifest(manifest.id, error) from error
    matched = match(state, tree, strict=rules.strict, cast=rules.cast, kept=kept)
    met = Counter(name for leaf in _leaves(matched.used) if (name := names.get(id(leaf))) is not None)
    found: dict[str, torch.Tensor] = {}
    often: Counter[str] = Counter()
    for saved, target in matched.sharded:
        name = names.get(id(saved))
        if name is not None and _same_part(found.setdefault(name, target), target):
            often[name] += 1
    parts = {name: target for name, target in found.items() if often[name] == met[name]}
    return list(met), parts, matched.values_decide


def _same_part(one: Any, other: Any) -> bool:
    """Return whether two DTensors are cut in the same way, so that this rank has the same part of both."""
    return one is other or (one.placements, one.device_mesh) == (other.placements, other.device_mesh)


def _leaves(tree: Tree) -> Iterator[object]:
    """Yield every place of a tensor or an array in a decoded tree."""
    if isinstance(tree, torch.Tensor | np.ndarray):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _leaves(value)


def _first_damage(said: list[Message]) -> list[Message]:
    """Return, for each rank, the first damage that any of them has found; None: nobody has."""
    found = [f"{message['damage']} (rank {rank})" for rank, message in enumerate(said) if message["damage"]]
    return [{"damage": found[0] if found else None}] * len(said)


def _assign_reads(said: list[Message], manifest: Manifest) -> list[Message]:
    """Return each rank's ReadPlan, as rank 0 decides; who wants a run and has fewest bytes so far reads it."""
    damaged = _first_damage(said)
    if damaged[0]["damage"] is not None:
        return damaged
    wanting: dict[Chunk, list[int]] = {}
    for rank, message in enumerate(said):
        for run in message["runs"]:
            for chunk in chunks_of(run):
                wanting.setdefault(chunk, []).append(rank)
    shares = [ReadPlan([], [], [], 0) for _ in said]
    reading = [0] * len(said)
    for run, ranks in _together(sorted(wanting.items()), manifest):
        reader = min(ranks, key=lambda rank: reading[rank])
        reading[reader] += run_range(manifest, run)[1]
        others = [rank for rank in ranks if rank != reader]
        if not others:
            shares[reader].alone.append(run)
            continue
        for rank in others:
            shares[rank].gets.append((len(shares[reader].sends), reader, run))
        shares[reader].sends.append((run, others))
    rounds = max(len(share.sends) for share in shares)
    return [{"damage": None, **vars(share), "rounds": rounds} for share in shares]


def _together(wanting: list[tuple[Chunk, list[int]]], manifest: Manifest) -> Iterator[tuple[Run, list[int]]]:
    """Yield chunks side by side that the same ranks want, in runs of no more than _RUN_BYTES if they have several."""
    at = 0
    while at < len(wanting):
        (object, first), ranks = wanting[at]
        most = max(1, _RUN_BYTES // manifest.objects[object].chunk_bytes)
        count = 1
        while count < most and wanting[at + count : at + count + 1] == [((object, first + count), ranks)]:
            count += 1
        yield (object, first, count), ranks
        at += count

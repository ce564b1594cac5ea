"""Loads one checkpoint into a state that several ranks hold together; the same one on every rank, or none at all.

    rank 0 names a checkpoint  ->  every rank: does it fit, what do I want?  ->  rank 0: who reads which chunk
      ->  read, verified, passed on  ->  all whole?  ->  applied everywhere

Every chunk that anybody wants is read by one rank, and broadcast if others want it too: a replicated state is read once
over all ranks. Damage that any rank finds makes all of them go on to the next older checkpoint. Nothing of the state is
touched before all ranks have verified all that they want.
"""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch

from checkpoint.apply import apply, match
from checkpoint.errors import CheckpointError, CorruptCheckpoint, NoCheckpoint
from checkpoint.format.decoding import decode
from checkpoint.format.manifest import Manifest
from checkpoint.format.names import CommitId, id_document, id_from
from checkpoint.format.tree import Tree
from checkpoint.group.ranges import Chunk, Wanted, check_chunk, chunk_range, read_chunk
from checkpoint.group.tensor import like
from checkpoint.group.world import Message, World
from checkpoint.loaded import Loaded, Skipped
from checkpoint.reader import check_sizes
from checkpoint.runs.history import Log, read_history, read_manifest
from checkpoint.storage import Storage

_AHEAD = 2  # chunks that a rank reads before they are needed

Turn = tuple[int, Chunk, bool]  # the rank that reads, what, whether others want it too
NoneLeft = Callable[[int | None, dict[str, str]], NoCheckpoint]


def load_together(
    world: World, storage: Storage, state: Tree, *, step: int | None, strict: bool, log: Log, none: NoneLeft
) -> Loaded:
    """The step that was loaded. Collective.

    none    the error for when no checkpoint of `step` is whole; given why those that exist are not
    raises  the same on all ranks: what `none` makes, CorruptCheckpoint where `step` is given, StateMismatch,
            StorageError, CheckpointError for lost ranks; nothing was touched then, unless an object refuses
    memory  beside the state a copy of what this rank wants, and three chunks
    """
    step = None if step is None else operator.index(step)  # numpy's integers are no JSON
    candidates = _Candidates(storage, step, log, none)
    while True:
        mine: Message = {"step": step}
        chosen = world.agree(
            "which checkpoint is loaded", mine, lambda said: candidates.next([message["step"] for message in said])
        )
        id = id_from(chosen["id"])
        assert id is not None
        found = _try(world, storage, state, id, strict)
        if isinstance(found, Skipped):
            if any(found) and world.rank == 0:
                log(found.line(id.step))
            return Loaded(id.step, found)
        log(f"{id} passed over: {found}")
        candidates.reject(id, found)


class _Candidates:
    """What rank 0 would load, newest first, as `Checkpointer.read` would."""

    def __init__(self, storage: Storage, step: int | None, log: Log, none: NoneLeft) -> None:
        self._storage, self._step, self._log, self._none = storage, step, log, none
        self._rejected: dict[str, str] = {}
        self._last: CommitId | None = None

    def next(self, steps: list[int | None]) -> list[Message]:
        """The answer for all ranks. The list is read anew each time: a sweep may have removed what was there."""
        if any(step != self._step for step in steps):
            raise CheckpointError(f"the ranks load different steps: {steps}\n  state  nothing was changed")
        for id in read_history(self._storage, self._log).lineage:
            if str(id) not in self._rejected and self._step in (None, id.step):
                return [{"id": id_document(id)}] * len(steps)
        if self._step is not None and self._last is not None:
            raise CorruptCheckpoint(self._rejected[str(self._last)], commit=str(self._last))
        raise self._none(self._step, self._rejected)

    def reject(self, id: CommitId, why: str) -> None:
        self._rejected[str(id)] = why
        self._last = id


def _try(world: World, storage: Storage, state: Tree, id: CommitId, strict: bool) -> Skipped | str:
    """Loads this checkpoint on all ranks, or says to all of them what is damaged. Returns what was left alone, or the
    damage."""
    mine: Message | Exception
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(storage, id)
        check_sizes(storage, manifest)  # before anything is allocated for it
        sharded = _sharded(state, manifest, strict)
        wanted = Wanted(manifest, sharded)
        mine = {"damage": None, "chunks": wanted.chunks}
    except CorruptCheckpoint as error:
        mine = {"damage": str(error)}
    except Exception as error:  # whatever it is, the others must not wait for this rank
        mine = error
    dealt = world.agree(f"what is wanted of {id}", mine, lambda said: _deal(said, manifest))
    if dealt["damage"] is not None:
        return str(dealt["damage"])
    assert manifest is not None

    turns = [[(rank, (o, c), shared) for o, c, shared in one] for rank, one in enumerate(dealt["turns"])]
    try:
        _fill(world, storage, manifest, wanted, turns)
        mine = {"damage": None}
    except CorruptCheckpoint as error:
        mine = {"damage": str(error)}
    except Exception as error:
        mine = error
    verified = world.agree(f"whether {id} is whole", mine, _first_damage)
    if verified["damage"] is not None:
        return str(verified["damage"])

    skipped = Skipped()
    try:
        tensors = {
            name: like(sharded[name], part) if name in sharded else part for name, part in wanted.tensors.items()
        }
        skipped = apply(state, decode(manifest.tree, tensors), strict=strict)
        mine = {}
    except Exception as error:
        mine = error
    here = f"this rank holds {id}; whether all others do is not known, so load again before training goes on"
    world.agree(f"that {id} is loaded", mine, lambda said: said, last=True, state=here)
    return skipped


def _sharded(state: Tree, manifest: Manifest, strict: bool) -> dict[str, torch.Tensor]:
    """The tensors of which this rank wants no more than its part of a DTensor, each with that DTensor.

    Raises `StateMismatch` where the checkpoint is of another state, `CorruptCheckpoint` where it is none of ours.
    """
    empty = {
        name: torch.empty(stored.shape, dtype=stored.dtype, device="meta") for name, stored in manifest.tensors.items()
    }
    names = {id(tensor): name for name, tensor in empty.items()}
    try:
        tree = decode(manifest.tree, empty)
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"manifest {manifest.id.manifest_key}: {error}", commit=str(manifest.id)) from error
    found: dict[str, torch.Tensor] = {}
    often: Counter[str] = Counter()
    for saved, target in match(state, tree, strict=strict).sharded:
        name = names.get(id(saved))
        if name is not None and _same_part(found.setdefault(name, target), target):
            often[name] += 1
    met = Counter(names.get(id(tensor)) for tensor in _tensors(tree))
    return {name: target for name, target in found.items() if often[name] == met[name]}


def _same_part(one: Any, other: Any) -> bool:
    return one is other or (one.placements, one.device_mesh) == (other.placements, other.device_mesh)


def _tensors(tree: Tree) -> Iterator[torch.Tensor]:
    """Every place of a tensor in a decoded tree."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _first_damage(said: list[Message]) -> list[Message]:
    found = [f"{message['damage']} (rank {rank})" for rank, message in enumerate(said) if message["damage"]]
    return [{"damage": found[0] if found else None}] * len(said)


def _deal(said: list[Message], manifest: Manifest | None) -> list[Message]:
    """Who reads what: each chunk one of those who want it, whoever has the fewest bytes to read so far. On rank 0."""
    damaged = _first_damage(said)
    if damaged[0]["damage"] is not None:
        return damaged
    assert manifest is not None
    wanting: dict[Chunk, list[int]] = {}
    for rank, message in enumerate(said):
        for index, number in message["chunks"]:
            wanting.setdefault((index, number), []).append(rank)
    turns: list[list[tuple[int, int, bool]]] = [[] for _ in said]
    reading = [0] * len(said)
    for chunk, ranks in sorted(wanting.items()):
        reader = min(ranks, key=lambda rank: reading[rank])
        reading[reader] += chunk_range(manifest, chunk)[1]
        turns[reader].append((*chunk, len(ranks) > 1))
    return [{"damage": None, "turns": turns}] * len(said)


def _fill(world: World, storage: Storage, manifest: Manifest, wanted: Wanted, turns: list[list[Turn]]) -> None:
    """Reads, verifies and passes on, round after round: in each, every rank has read one chunk.

    Raises what this rank failed of. When another one did, returns early: what that one says comes next. A rank that
    failed takes part until the others learn of it, in the next round in which anything is passed on.
    """
    shared = [chunk_range(manifest, chunk)[1] for one in turns for _, chunk, passed_on in one if passed_on]
    memory = torch.empty(max(shared, default=0), dtype=torch.uint8)
    failure: CheckpointError | None = None
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="checkpoint-read") as pool:
        mine = turns[world.rank]
        reads: deque[Future[bytes]] = deque()
        coming = iter(mine)
        for row in zip_longest(*turns):
            reads.extend(
                pool.submit(read_chunk, storage, manifest, chunk)
                for _, chunk, _ in islice(coming, max(0, 1 + _AHEAD - len(reads)))
            )
            read, own = None, row[world.rank]
            if own is not None:
                read, failed = _outcome(reads.popleft())
                failure = failure or failed
            passed_on = [turn for turn in row if turn is not None and turn[2]]
            if passed_on and any(world.all_gather(int(failure is not None))):
                break
            if own is not None and read is not None:
                wanted.fill(own[1], read)
            for rank, chunk, _ in passed_on:
                failure = _pass_on(world, manifest, wanted, memory, rank, chunk, read) or failure
        pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure


def _outcome(read: Future[bytes]) -> tuple[bytes | None, CheckpointError | None]:
    try:
        return read.result(), None
    except CheckpointError as error:
        return None, error


def _pass_on(
    world: World,
    manifest: Manifest,
    wanted: Wanted,
    memory: torch.Tensor,
    reader: int,
    chunk: Chunk,
    read: bytes | None,
) -> CheckpointError | None:
    """From the rank that read a chunk to all; each verifies what it got, and returns what is wrong with it."""
    part = memory[: chunk_range(manifest, chunk)[1]]
    if world.rank == reader:
        assert read is not None
        part.numpy()[:] = np.frombuffer(read, np.uint8)
    world.broadcast(part, source=reader)
    if world.rank == reader:
        return None
    try:
        check_chunk(manifest, chunk, part.numpy().data)
    except CorruptCheckpoint as error:
        return CheckpointError(f"on the way from rank {reader} to rank {world.rank} bytes were changed: {error}")
    wanted.fill(chunk, part.numpy().data)
    return None

"""`Checkpointer`: saves and loads any state below one URL. The package's map is at its top, in `__init__.py`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from elastic_checkpoint import arguments
from elastic_checkpoint.errors import CheckpointError, ClaimLost, CorruptCheckpoint, NoCheckpoint, SaveDropped
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.format.marks import Patterns
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.shards import SHARD_BYTES
from elastic_checkpoint.load.cast import Cast
from elastic_checkpoint.load.integrity import Search, Verified, none_whole, verify
from elastic_checkpoint.load.into_state import LoadRules
from elastic_checkpoint.load.loaded import Loaded, Skipped
from elastic_checkpoint.load.reader import Checkpoint, read_commit
from elastic_checkpoint.local import LocalProcess
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.runs.claim_record import Claim, read_claim
from elastic_checkpoint.runs.history import History, list_commits, read_history, read_manifest, read_note, write_note
from elastic_checkpoint.runs.liveness import LivenessEndpoint, write_moved
from elastic_checkpoint.runs.own_claim import OwnClaim
from elastic_checkpoint.runs.retention import UNFIT, Sweeper
from elastic_checkpoint.runs.sweeps import Sweeps
from elastic_checkpoint.save.handle import Saving
from elastic_checkpoint.save.in_flight import Rules, WhenBusy
from elastic_checkpoint.save.pipeline import SavePipeline
from elastic_checkpoint.save.planner import Planner
from elastic_checkpoint.save.ranks import Context
from elastic_checkpoint.save.resources import opening_of
from elastic_checkpoint.storage import Storage, open_storage

if TYPE_CHECKING:
    import torch

    from elastic_checkpoint.distributed import Group, GroupMember

BUDGET_BYTES = 512 * 2**20
_LOOK_S = 10.0  # how long a look at another URL is tried


class Checkpointer:
    """Durable checkpoints of any state below one URL. See `__init__` for the arguments.

    Reading needs no claim and never writes. The first save (or `claim()`) takes the run's next claim, and from then
    on this process holds it until it closes or dies, or another job takes a newer one.

    What was loaded with `load` is what the job goes on from: if another job has gone on with the run since, the first
    save is refused (`RunMovedOn`), for it would supersede the other's work. To be refused before any training, call
    `claim()` before `load`. What was loaded of an older step, in this process or another, is gone on from as a branch:
    what is saved then is the run's newest, and what came after that step belongs to it no more, and is swept after
    orphan_grace_s. `read`, and `load` with resume=False, are for reading: they mean nothing for what is saved.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Storage,
        *,
        group: Group | None = None,
        keep: int = 3,
        keep_every: int | None = None,
        keep_multiple: int | None = None,
        storage_options: dict[str, Any] | None = None,
        job: str | None = None,
        take_over: bool = False,
        grace_s: float = 15.0,
        retry_s: float = 120.0,
        log: Callable[[str], None] | None = None,
        shard_bytes: int = SHARD_BYTES,
        orphan_grace_s: float = 3600.0,
        answers: tuple[str, dict[str, Any]] | None = None,
        when_busy: WhenBusy = "wait",
        failures_max: int = 3,
        finish_s: float = 600.0,
        budget_bytes: int = BUDGET_BYTES,
        per_rank: Iterable[str] = (),
        rank0: Iterable[str] = (),
        replicas: Literal["compared", "trusted"] = "compared",
        per_rank_resized: Literal["refuse", "keep"] = "refuse",
    ) -> None:
        """Contact nothing yet.

        Of a group, what is no DTensor counts as the same on all ranks, and so does each part of a DTensor that several
        hold; RanksDiffer names what is not. `per_rank` and `rank0` name what is meant to differ.

        Args:
            url: A folder or any fsspec URL, or a storage of one's own.
            group: The ranks that hold the state together: all of them call `save` and `load`, at the same steps.
                "auto": all of torch.distributed, where it is initialised. None: this process saves and loads alone.
                Rank 0 holds the claim. See per_rank for what differs between ranks.
            keep: How many of the newest checkpoints stay; never fewer than two do.
            keep_every: Beside them, of every so many steps (0 to N-1, N to 2N-1, ...) the first checkpoint stays for
                good: step N where it was saved, else the next one after it. What a later Checkpointer without it finds,
                that one's sweeps remove.
            keep_multiple: Beside them, of the steps that are a multiple of it, the newest whole checkpoint stays.
            storage_options: For fsspec's filesystem.
            job: A name that restarts of one job share: the restart waits for its dying predecessor.
            take_over: Claim the URL although a live job answers for it.
            grace_s: How long a silent or dying holder is waited for.
            retry_s: How long a failing storage operation is tried again.
            log: Gets one line per remarkable thing, in any thread; what it raises is passed over. The default is the
                logger named "elastic_checkpoint".
            shard_bytes: The most tensor bytes in one object.
            orphan_grace_s: How old the remains of unfinished saves become before they are swept; those of our own
                claim, which may be under way, at least three times finish_s.
            answers: (nonce, endpoint) of a `LivenessServer` that answers for this job instead of one of our own: one
                that outlives the processes of the job, which hand a claim on to each other with `adopt`.
            when_busy: What a third save with blocking=False does, where two are under way: "wait" for one of them;
                "skip" itself; "replace" the younger, if its writing has not begun, else wait.
            failures_max: After so many such saves that failed, in a row, the next one raises.
            finish_s: How long a save with blocking=False may take; also how long the writer process goes on after this
                process ended, and how long the ranks of a group wait for one that is silent. One that died is noticed
                at once, one whose machine is lost within 30 s.
            budget_bytes: How much of such saves is on its way to the storage at once.
            per_rank: Paths of entries of which each rank's own value is saved, and given back to that rank: "rng",
                "loader.position" (and all below), "model.*.running_*".
            rank0: Those of which rank 0's value is saved, and given to all. Buffers of modules, BatchNorm's running
                statistics among them, are so anyway, as in DDP.
            replicas: "compared": every rank hashes what it shares with the others at every save, at some 30 GB/s a
                thread. "trusted": tensors are not looked at, and if they differ a mixture is saved.
            per_rank_resized: What becomes of `per_rank` values at another number of ranks than saved them: "refuse"
                raises StateMismatch that names them; "keep" leaves what the state holds here, and says so.

        Raises:
            CheckpointError: An argument is none of what it may be, or no storage can be opened at `url`.
        """
        arguments.refuse(
            arguments.count("shard_bytes", shard_bytes, "the most tensor bytes in one object"),
            arguments.seconds("grace_s", grace_s),
            arguments.seconds("retry_s", retry_s),
            arguments.seconds("orphan_grace_s", orphan_grace_s),
            arguments.choice("replicas", replicas, "compared", "trusted"),
            arguments.choice("per_rank_resized", per_rank_resized, "refuse", "keep"),
            arguments.options("storage_options", storage_options),
            arguments.flag("take_over", take_over),
            arguments.some("per_rank", per_rank, "paths of entries"),
            arguments.some("rank0", rank0, "paths of entries"),
            None if job is None or isinstance(job, str | int) else f"job={job!r}; expected a name, or None",
            None if log is None or callable(log) else f"log={log!r}; expected a function of a line, or None",
        )
        if group is not None:
            from elastic_checkpoint.distributed import (  # torch's planner takes a while to import
                GroupMember,
                check_group,
            )

            check_group(group)
        own, of_rank0 = Patterns(per_rank, "per_rank"), Patterns(rank0, "rank0")
        self._resized = per_rank_resized
        self._rules = Rules(when_busy, failures_max, finish_s, budget_bytes)
        self._storage = _opened(url, storage_options, retry_s)
        opening = opening_of(url, self._storage, storage_options or {}, retry_s)
        self._log = functools.partial(_told, log or logging.getLogger("elastic_checkpoint").warning)
        self._sweeper = Sweeper(
            self._storage,
            keep=keep,
            keep_every=keep_every,
            keep_multiple=keep_multiple,
            orphan_grace_s=orphan_grace_s,
            finish_s=finish_s,
            log=self._log,
        )
        self._local = LocalProcess(self._storage, opening, self._rules, Planner(shard_bytes, own), log=self._log)
        self._distributed: GroupMember | None = None
        if group is not None:
            self._distributed = GroupMember(
                group,
                self._storage,
                opening,
                self._rules,
                shard_bytes=shard_bytes,
                per_rank=own,
                rank0=of_rank0,
                trusted=replicas == "trusted",
                log=self._log,
            )
        self._own_claim = OwnClaim(
            self._storage,
            job=None if job is None else str(job),
            take_over=take_over,
            grace_s=grace_s,
            retry_s=retry_s,
            finish_s=finish_s,
            answers=answers,
            reopen=_reopening(opening, storage_options, retry_s),
            settle=_weakly(self._settle),
            log=self._log,
        )
        self._sweeps = Sweeps(self._sweeper, self._own_claim, self._log)
        self._saved_s = 0.0
        self._closed = False

    @property
    def url(self) -> str:
        """Return where this reads and writes, without credentials."""
        return self._storage.url

    def claim(self, *, world: dict[str, Any] | None = None, answers_for_others: bool = False) -> Claim:
        """Return the claim of this process, taken now if it has none yet.

        Args:
            world: Is written into it, for people and for the caller's own rules; nothing here reads it.
            answers_for_others: The endpoint of `answers` may be named by a claim under which a process on another
                machine goes on. So what it answers says nothing, and only the holder's heartbeats in the storage
                count.

        Raises:
            CheckpointError: This is closed, or another rank of a group than rank 0.
            ClaimHeld: A live job holds the URL.
            ClaimLost: Another job has taken a newer claim than the one that was held.
            RunMovedOn: Another job has gone on with the run since this one loaded.
            StorageError: The storage could not be asked.
        """
        if (group := self._group()) is not None and group.rank:
            raise CheckpointError("rank 0 holds the claim of all ranks; call claim() there only")
        self._check_open()
        return self._own_claim.claim(world, answers_for_others=answers_for_others)

    def adopt(self, claim: Claim) -> None:
        """Go on under a claim that another process of this job took and gave up: by its death, or by handing it on.

        Nothing is asked or written. That the other one is gone must be certain: two writers under one claim would
        overwrite what the other sweeps.

        Args:
            claim: As the other process had it.
        """
        self._own_claim.adopt(claim)
        self._set_claim(claim)

    def succeed(
        self,
        to: Claim,
        *,
        answers: tuple[str, dict[str, Any]],
        world: dict[str, Any],
        ours: Callable[[Claim], bool],
    ) -> Claim:
        """Take the next claim of a run that lost some of its machines, without asking anybody.

        Of those who try, on whichever side of a cut network, the storage lets one win, where it creates exclusively
        (`exclusive`). Waits for no save of this process that is under way. One that is committed before the claim is
        taken belongs to what the claim goes on from; each later one is dropped (`SaveDropped`).

        Args:
            to: The claim that the run had.
            answers: See `__init__`.
            world: Is written into the claim.
            ours: Whether a claim that was taken meanwhile leaves the run to us all the same.

        Raises:
            ClaimLost: Somebody else has gone on with the run; nothing was claimed.
            StorageError: The storage failed.
        """
        self._check_open()
        claim = self._own_claim.succeed(to, answers=answers, world=world, ours=ours)
        self._set_claim(claim)
        return claim

    def move_liveness(self, claim: Claim, *, answers: tuple[str, dict[str, Any]]) -> None:
        """Write that this liveness endpoint answers for the claim from now on, since the one that the claim names goes.

        A process of the holder's job calls it, with or without the claim. Without that, whoever starts on this URL
        finds the holder gone.

        Args:
            claim: Of this run.
            answers: See `__init__`.

        Raises:
            StorageError: The storage failed.
        """
        self._check_open()
        write_moved(self._storage, claim.number, LivenessEndpoint(*answers))

    def newest_claim(self) -> Claim | None:
        """Return the newest claim in storage, whoever holds it; None where there is none, or it cannot be read."""
        newest = read_history(self._storage, self._log).newest_claim
        return read_claim(self._storage, newest, self._log) if newest else None

    def sees(self, claim: Claim) -> bool:
        """Return whether this very claim, which another process has taken, is in this storage: both write to one place.

        Its number alone says nothing, since every folder counts its claims from 1; nor does its nonce, which an
        endpoint that answers for a whole job gives to each of them.

        Raises:
            StorageError: The storage failed.
        """
        return read_claim(self._storage, claim.number, _ignored) == claim

    @property
    def exclusive(self) -> bool:
        """Return whether, of any number of writers who create one object, exactly one succeeds. Tried once."""
        return self._storage.exclusive()

    def warm(self, state: Tree) -> None:
        """Make ready for saves of `state` with blocking=False, in the background, so that the first one is not slow.

        Takes the claim, starts the writer process, and allocates twice the state's bytes of shared memory. Call it
        once the state has its full size: for most optimizers, after their first step. With a group, all ranks call it,
        and each allocates twice its own share.

        Args:
            state: As it will be given to `save`; what it holds now is neither kept nor written.

        Raises:
            UnsupportedValue: Something in the state cannot be saved exactly.
            ClaimHeld: A live job holds the URL.
            RunMovedOn: Another job has gone on with the run since this one loaded.
            StorageError: The storage failed.
        """
        self._check_open()
        self._here().pipeline().warm(state, self._context(None))

    def give_up_saves(self) -> None:
        """End what is under way of saves with blocking=False, so that the next one has the storage to itself.

        They are dropped, but for one that is committed by then. What they have stored is removed as after a crash, and
        the next save starts another writer process. Not for a group's saves.

        Raises:
            CheckpointError: A group saves.
        """
        self._check_open()
        if self._group() is not None:
            raise CheckpointError("a group's saves are not given up: each rank would have to do so")
        if (saves := self._local.saves) is not None:
            saves.give_up()

    @overload
    def save(
        self, step: int, state: Tree, *, meta: dict[str, Any] | None = None, blocking: Literal[True] = True
    ) -> Commit: ...

    @overload
    def save(
        self,
        step: int,
        state: Tree,
        *,
        meta: dict[str, Any] | None = None,
        blocking: Literal[False],
        steady: Iterable[torch.Tensor] = (),
    ) -> Saving: ...

    @overload
    def save(
        self,
        step: int,
        state: Tree,
        *,
        meta: dict[str, Any] | None = None,
        blocking: bool,
        steady: Iterable[torch.Tensor] = (),
    ) -> Commit | Saving: ...

    def save(
        self,
        step: int,
        state: Tree,
        *,
        meta: dict[str, Any] | None = None,
        blocking: bool = True,
        steady: Iterable[torch.Tensor] = (),
    ) -> Commit | Saving:
        """Commit `state` as the checkpoint of `step`.

        With a group, all ranks call this, in the same way, and each stores its share; what comes of it, the commit or
        the error, is the same for all.

        A step that is saved again has two checkpoints. `load` and `read` give the newer one, and the older one where
        that is damaged; each counts for `keep`. What is saved last is the run's newest, also of an older step.

        Args:
            step: How many steps the state has behind it; names the checkpoint.
            state: Any tree of stateful objects, tensors, arrays and plain values.
            meta: Plain values, readable without the tensors. With a value under `unfit`, which says why nobody would
                choose to go on from this state, it does not count among those to keep.
            blocking: True returns the commit, durable; saves that were under way end before. False copies the state and
                returns a handle at once: the state may change, and a process of its own does the rest, which it ends
                even if this one is killed. What fails then is logged and raised by the handle.
            steady: With blocking=False, tensors that stay as they are until the handle's `staged()` has returned: they
                may be copied meanwhile. Others, if they lie on a GPU, are then copied before what is queued afterwards
                on the stream that is current now.

        Returns:
            The commit; with blocking=False the handle of the save that is under way.

        Raises:
            UnsupportedValue: Something in the state cannot be saved exactly; nothing is written.
            ClaimHeld: A live job holds the URL.
            RunMovedOn: Another job has gone on with the run since this one loaded.
            RanksDiffer: Ranks hold different values of what counts as the same; nothing is committed.
            ClaimLost: A newer claim was taken; nothing is committed.
            SaveDropped: Another thread saved an earlier step meanwhile; nothing is committed.
            StorageError: The storage failed; nothing is committed. With blocking=False only what was known before is
                raised: the claim was lost, or failures_max saves have failed.
        """
        self._check_open()
        arguments.refuse(arguments.some("steady", steady, "tensors"), arguments.flag("blocking", blocking))
        if not blocking:
            return self._here().pipeline().begin(step, state, meta or {}, self._context(step, meta or {}), steady)
        try:
            commit = self._here().pipeline().save(step, state, meta or {}, self._context(step))
        except ClaimLost as lost:
            if self._group() is not None or not self._own_claim.passed(lost):
                raise
            raise _outrun(step, lost) from lost
        self._sweeps.saved(commit.id)  # where the claim is: of a group on rank 0
        return commit

    def read(self, *, step: int | None = None, fit: bool = False) -> Checkpoint:
        """Return the newest whole checkpoint of the lineage (or that of `step`), every byte verified.

        A damaged one is passed over, with its reason logged, for the next older one.

        Args:
            step: Of which checkpoint; default the newest.
            fit: One whose `meta` says that it is `unfit` (see `save`) is passed over likewise.

        Raises:
            NoCheckpoint: There is none that is whole.
            CorruptCheckpoint: With `step`: that step's checkpoint is damaged.
        """

        def read(id: CommitId) -> Checkpoint:
            found = read_commit(self._storage, id)
            if fit and UNFIT in found.meta:
                raise CorruptCheckpoint(f"it is unfit to go on from: {found.meta[UNFIT]}", commit=str(id))
            return found

        return self._search(step).first_whole(read)

    def load(
        self,
        state: Tree,
        *,
        step: int | None = None,
        strict: bool = True,
        cast: Cast = None,
        default: int | None = None,
        resume: bool = True,
    ) -> Loaded:
        """Read a checkpoint as `read` does, apply it to the objects and tensors in `state`, and return its step.

        Before, it waits for writer processes on this machine that still finish what a process that died had staged, and
        for saves of this process that are under way.

        Args:
            state: The objects and tensors that are filled.
            step: Of which checkpoint; default the newest.
            strict: False accepts entries that only one side has, and logs their names; the step that is returned has
                them as `missing` and `unexpected`.
            cast: True: what was saved in another floating-point (or complex) dtype becomes that of what it is loaded
                into. A dtype: only what is loaded into this one. {"model.*": True or a dtype}: only names that match.
                Logged, and named in the step that is returned. A value beyond the dtype's largest is refused, and
                integers and booleans are never cast. What is loaded into an optimizer becomes the dtype of its state
                here or, where it has none yet, of its parameters, as torch's own load_state_dict does it.
            default: Is returned where there is no checkpoint at all yet, on all ranks of a group alike; `state` is as
                it was then. Asking `latest` first would wait for no writer, and ranks could see different things.
            resume: What is saved afterwards goes on from this checkpoint, as the class says: at an older `step`, later
                ones no longer belong to the run. False: it is only looked at.

        Returns:
            The step that was loaded, which also says what was left alone and what was cast.

        Raises:
            StateMismatch: The checkpoint and the state differ: lists all differences, before anything is touched.
            NoCheckpoint: There is none that is whole, and no `default`.
            CorruptCheckpoint: With `step`: that step's checkpoint is damaged.
        """
        arguments.refuse(
            arguments.step("step", step),
            arguments.flag("strict", strict),
            arguments.whole("default", default),
            arguments.flag("resume", resume),
        )
        loaded = self._own_claim.loaded if resume else _ignored
        try:
            return self._load(state, step, strict, cast, functools.partial(loaded, chosen=step is not None))
        except NoCheckpoint as none:
            if default is None or step is not None or none.rejected:
                raise
            if resume:
                self._own_claim.found_nothing()
            return Loaded(default, Skipped())

    def _load(
        self, state: Tree, step: int | None, strict: bool, cast: Cast, loaded: Callable[[CommitId, CommitId], None]
    ) -> Loaded:
        """Load as `load` does, by this process alone or with its group.

        loaded  gets what was loaded, and what the newest commit was then
        """
        rules = LoadRules(
            step, strict, cast, self._resized, self._log, prepare=self._prepare, search=self._search, loaded=loaded
        )
        return self._here().load(state, rules)

    def latest(self) -> Commit | None:
        """Return the newest commit of the lineage whose manifest is whole. Its data is not read; `read` verifies.

        What is to be gone on from, `load` knows better: it waits for what is still being finished.
        """
        try:
            return self._search(None).first_whole(lambda id: read_manifest(self._storage, id).as_commit())
        except NoCheckpoint:
            return None

    def list(self) -> list[Commit]:
        """Return every commit with a whole manifest, newest first; those outside the lineage are marked, and last."""
        return list_commits(self._storage, self._history(), self._log)

    def note(self, commit: Commit, note: dict[str, Any]) -> None:
        """Write a small word beside a checkpoint, once: what its saver came to know only after it.

        It is removed with the checkpoint, which is whole without it.

        Args:
            commit: Of this run.
            note: What JSON can hold, with strings as keys, of at most 60 KB.

        Raises:
            StorageError: The storage failed.
            ValueError: JSON cannot hold it.
        """
        self._check_open()
        write_note(self._storage, commit.id, note)

    def noted(self, commit: Commit) -> dict[str, Any] | None:
        """Return what `note` has written beside this checkpoint; None: nothing, or nothing that is whole.

        Raises:
            StorageError: The storage failed.
        """
        return read_note(self._storage, commit.id)

    def verify(self, *, step: int | None = None) -> Sequence[Verified]:
        """Read every byte of every commit (or of those of `step`), newest first, and say what is damaged."""
        arguments.refuse(arguments.step("step", step))
        return verify(self._storage, self._history(), step=step)

    def sweep(self) -> Sequence[str]:
        """Remove what runs/retention.py says, and return its names. Nothing where this process holds no claim."""
        return self._sweeps.sweep()

    def wait(self) -> None:
        """Wait until no save is under way. Raises what the newest one failed of."""
        for saves in self._saves():
            saves.wait()
        self._sweeps.join(self._rules.finish_s)

    def close(self, *, finish: bool = True) -> None:
        """Finish the saves that are under way; gives up the claim's endpoint and the storage's connections.

        Idempotent; nothing can be saved afterwards. What fails is logged; `wait` before this raises it.

        Args:
            finish: False leaves the saves under way to the writer process, which ends by itself: for a process that
                others wait for.
        """
        self._closed = True
        self._local.close(finish=finish)
        if self._distributed is not None:
            self._distributed.close(finish=finish)
        if finish:
            self._sweeps.join(self._rules.finish_s)
        self._own_claim.close()
        self._storage.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CheckpointError(f"this Checkpointer of {self._storage.url} is closed; make a new one")

    def _history(self) -> History:
        """Return the run's history, as the claim of this process sees it, if there is one."""
        return read_history(self._storage, self._log, under=self._own_claim.number)

    def _settle(self) -> None:
        """Wait until no save of this process is under way, whatever came of them."""
        for saves in self._saves():
            saves.settle()

    def _set_claim(self, claim: Claim) -> None:
        for saves in self._saves():
            saves.set_claim(claim.number)

    def _saves(self) -> Sequence[SavePipeline]:
        return [one.saves for one in (self._local, self._distributed) if one is not None and one.saves is not None]

    def _here(self) -> LocalProcess | GroupMember:
        """Return who saves and loads now."""
        return self._group() or self._local

    def _group(self) -> GroupMember | None:
        return self._distributed if self._distributed is not None and self._distributed.active else None

    def _search(self, step: int | None) -> Search:
        arguments.refuse(arguments.step("step", step))
        return Search(self._history, step=step, none=functools.partial(none_whole, self.url), log=self._log)

    def _context(self, step: int | None, meta: Mapping[str, Any] = MappingProxyType({})) -> Context:
        """Return what a save needs of this object.

        step  to be saved; None: nothing is
        """
        claim = self.claim if step is None else functools.partial(self._claim_for, step)
        committed = functools.partial(self._sweeps.saved_beside, unfit=UNFIT in meta)
        return Context(claim, self._save_time_s, committed, self._sweeper.protecting)

    def _claim_for(self, step: int) -> Claim:
        """Return the claim to save this step under; saves under way of an older one count if committed before."""
        before = self._own_claim.number
        claim = self._own_claim.for_step(step)
        if before not in (None, claim.number):
            self._set_claim(claim)
        return claim

    def _save_time_s(self) -> float:
        """Return the time, later than at the last save, so that of two saves of one step the second is the newer."""
        self._saved_s = max(time.time(), self._saved_s + 0.001)
        return self._saved_s

    def _prepare(self) -> None:
        """Wait until what is still being saved is there, or has failed."""
        if self._own_claim.held is None:  # else it has waited for them
            self._own_claim.wait_for_orphans()
        self._settle()


def _outrun(step: int, lost: ClaimLost) -> SaveDropped:
    return SaveDropped(
        f"step {step} was not saved: another thread of this process saved an earlier step meanwhile, for which it went "
        f"on from claim {lost.ours} to claim {lost.newest}\n"
        "  state  nothing of this save was committed; what that thread saved is the run's newest\n"
        "  next   save from one thread at a time, in the order in which the run goes on; or give each thread's run a "
        "URL of its own",
        step=step,
    )


def _opened(url: str | os.PathLike[str] | Storage, options: dict[str, Any] | None, retry_s: float) -> Storage:
    """Return the storage that was given, or the one at the URL; what is neither is refused as a URL."""
    if not isinstance(url, str | os.PathLike) and hasattr(url, "put_new"):
        return url
    return open_storage(cast(str, url), options, retry_s=retry_s)


def _told(log: Callable[[str], None], line: str) -> None:
    """Log the line, whatever the log does: one that fails ends no save, and no thread of ours."""
    with contextlib.suppress(Exception):
        log(line)


def _ignored(*what: object, **how: object) -> None:
    pass


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return the method of an object that may go with its last other user."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (found := reference()) is not None:
            found()

    return call


def _reopening(
    opening: Message | str, options: dict[str, Any] | None, retry_s: float
) -> Callable[[str], Storage] | None:
    """Return what opens other URLs alike; None where this one is no other process's business."""
    if isinstance(opening, str):
        return None
    return lambda url: open_storage(url, options, retry_s=min(retry_s, _LOOK_S))

"""This process's right to write a run: its claim, taken when it is needed, and what its next save goes on from.

    nothing yet  ->  loaded (noted, nothing is written)  ->  claimed, from what was loaded  ->  saves under this claim
                        ^                                          |
                        +--- loaded an older one, or a save of an earlier step: the next claim, as a branch

Under one claim the later step is the newer checkpoint, so a claim's steps only rise. Where they would fall, because a
cell was run again or a spike was rolled back, the process takes the next claim for itself: what it saves then is the
run's newest, whatever its step.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from elastic_checkpoint.errors import CheckpointError, ClaimLost
from elastic_checkpoint.format.names import (
    CLAIMS,
    COMMITS,
    CommitId,
    claim_key,
    commit_id,
    heartbeat_key,
    liveness_key,
)
from elastic_checkpoint.net.machine import boot_id
from elastic_checkpoint.runs.claim_record import Claim, Origin, new_claim_nonce
from elastic_checkpoint.runs.claims import Free, take
from elastic_checkpoint.runs.heartbeat import Heartbeat, read_heartbeat
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.runs.holder import wait_until_free
from elastic_checkpoint.runs.liveness import LivenessServer, read_moved
from elastic_checkpoint.runs.newer_claim import lost, newer_claim
from elastic_checkpoint.runs.orphans import ORPHANS_S, wait_for_orphans
from elastic_checkpoint.storage import Missing, Storage


class OwnClaim:
    """The claim of one `Checkpointer`; see there for `answers`, `job`, `take_over` and `grace_s`.

    reopen  the storage at another URL, with the same options; None where no other process can write to this one
    settle  returns when no save of this process is under way
    """

    def __init__(
        self,
        storage: Storage,
        *,
        job: str | None,
        take_over: bool,
        grace_s: float,
        retry_s: float,
        finish_s: float,
        answers: tuple[str, dict[str, Any]] | None,
        reopen: Callable[[str], Storage] | None,
        settle: Callable[[], None],
        log: Log,
    ) -> None:
        self._storage = storage
        self._job = job
        self._take_over = take_over
        self._grace_s = grace_s
        self._retry_s = retry_s
        self._finish_s = finish_s
        self._answers = answers
        self._reopen = reopen
        self._settle = settle
        self._log = log
        self._ignored_nonce: str | None = None  # the nonce of our own endpoint, where what that answers says nothing
        self._claim: Claim | None = None
        self._pid = 0
        self._origin: Origin | None = None  # what was loaded, until a claim names it
        self._replaced: set[int] = set()
        self._given_up: list[Callable[[], None]] = []  # what withdraws claims of attempts that failed with the storage
        self._begun_step = self._committed_step = -1  # under this claim, the highest
        self._taking = threading.Lock()  # of several threads that save, one at a time takes a claim
        self._taking_pid = os.getpid()
        self._branched = 0  # the newest claim that was taken for a save of an earlier step
        self._end_heartbeat: weakref.finalize[[], OwnClaim] | None = None
        self._stop_server: weakref.finalize[[], OwnClaim] | None = None  # also when nobody calls close()

    @property
    def held(self) -> Claim | None:
        """Return the claim of this process; a forked child has none: its parent answers for it, and goes on."""
        return self._claim if self._pid == os.getpid() else None

    @property
    def number(self) -> int | None:
        """Return the number of the claim that is held."""
        return self._claim.number if self._claim is not None and self._pid == os.getpid() else None

    def claim(self, world: dict[str, Any] | None = None, *, answers_for_others: bool = False) -> Claim:
        """Return the claim to save under, taken now if there is none yet, or if what was loaded asks for another one.

        answers_for_others  see Checkpointer.claim
        Raises ClaimHeld, RunMovedOn, StorageError, and ClaimLost where one was held.
        """
        while self._given_up:  # else they would stand above what we hold
            self._given_up[-1]()
            self._given_up.pop()
        held = self.held
        if held is None:
            with self._one_takes():
                held = self.held  # another thread may have been here
                if held is None:
                    return self._first(world, answers_for_others=answers_for_others)
        return held if self._origin is None else self._branch(held)

    def _first(self, world: dict[str, Any] | None, *, answers_for_others: bool) -> Claim:
        self._claim = None
        if not self._storage.exclusive():
            self._log(
                f"{self._storage.url} cannot create an object only if it is absent; of two jobs that start at the same "
                "instant both may begin, and one stops at its first save"
            )
        self._ignored_nonce = self._answers[0] if answers_for_others and self._answers is not None else None
        self.wait_for_orphans()  # where there is no claim yet, or nobody is asked
        nonce = self._answers[0] if self._answers is not None else new_claim_nonce()
        endpoint = self._answers[1] if self._answers is not None else self._listen(nonce)
        try:
            return self._take(endpoint, nonce, self._job, world)
        finally:
            if self._claim is None:
                self._stop_listening()

    def for_step(self, step: int) -> Claim:
        """Return the claim to save this step under: another one where its steps would fall. Raises as `claim`."""
        claim = self.claim()
        if step < self._begun_step:
            self._settle()
            if step < max(self._committed_step, self._listed_step(claim.number)):
                claim = self._branch(claim)
        self._begun_step = step
        return claim

    def passed(self, lost: ClaimLost) -> bool:
        """Return whether this process has the newer claim, taken by another thread for a save of an earlier step."""
        with self._one_takes():  # it may lie in storage, and not be known here yet
            return lost.ours < lost.newest <= self._branched

    def committed(self, id: CommitId) -> None:
        """Note that this was committed. From any thread."""
        if id.claim == self.number:
            self._committed_step = max(self._committed_step, id.step)

    def loaded(self, source: CommitId, newest: CommitId, *, chosen: bool) -> None:
        """Note that what is saved from here on goes on from `source`.

        newest  the run's newest commit then
        chosen  whether this very step was asked for; else it is the newest that is whole, and those above it, which
                are damaged, stay what they are: the run's
        """
        goes_on = self.held is not None and source == newest
        self._origin = None if goes_on else Origin(newest, source if chosen else newest)

    def found_nothing(self) -> None:
        """Note that there was no checkpoint, and the job begins anew."""
        if self.held is None:
            self._origin = Origin(None, None)

    def adopt(self, claim: Claim) -> None:
        """Go on under a claim that another process of this job gave up."""
        self._hold(claim, adopted=True)

    def succeed(
        self,
        to: Claim,
        *,
        answers: tuple[str, dict[str, Any]],
        world: dict[str, Any],
        ours: Callable[[Claim], bool],
    ) -> Claim:
        """Take the next claim, as Checkpointer.succeed says."""

        def free(holders: Sequence[Claim]) -> frozenset[int]:
            self._replaced.update(one.number for one in holders)
            newest = max(holders, key=lambda one: one.number)
            if newest.number > to.number and not ours(newest):
                raise lost(ours=to.number, newest=newest.number, doing="nothing was claimed")
            return frozenset()

        self._answers, self._origin = answers, None
        return self._take(answers[1], answers[0], self._job, world, free)

    def wait_for_orphans(self) -> None:
        """Wait for writer processes whose parents are gone, as orphans.py says."""
        wait_for_orphans(self._storage.url, within_s=min(ORPHANS_S, self._finish_s), log=self._log)

    def close(self) -> None:
        """Answer nobody any more: from here on whoever asks is refused. Idempotent."""
        if self._end_heartbeat is not None:
            self._end_heartbeat()
        self._stop_listening()

    def _branch(self, held: Claim) -> Claim:
        """Take the next claim for this process, which goes on from what was loaded, or from its own newest commit."""
        self._settle()
        with self._one_takes():
            held = self.held or held  # another thread may have been here
            if (newer := newer_claim(self._storage, held.number, held.nonce)) is not None:
                raise lost(ours=held.number, newest=newer, doing="nothing was saved")
            claim = self._take(held.endpoint, held.nonce, held.job, held.world)
            self._branched = claim.number
        return claim

    def _one_takes(self) -> threading.Lock:
        if self._taking_pid != os.getpid():  # a fork, whose parent may have held it
            self._taking, self._taking_pid, self._branched = threading.Lock(), os.getpid(), 0
        return self._taking

    def _listed_step(self, claim: int) -> int:
        """Return the highest step committed under this claim, also by a save reported as failed by a silent storage."""
        ids = [id for key in self._storage.list(COMMITS) if (id := commit_id(key)) is not None]
        return max((id.step for id in ids if id.claim == claim), default=-1)

    def _take(
        self,
        endpoint: dict[str, Any] | None,
        nonce: str,
        job: str | None,
        world: dict[str, Any] | None,
        free: Free | None = None,
    ) -> Claim:
        claim = take(
            self._storage,
            endpoint=endpoint,
            nonce=nonce,
            job=job,
            world=world,
            free=free or self._free,
            log=self._log,
            deadline_s=self._retry_s,
            origin=self._origin,
            put_off=self._given_up.append,
        )
        self._hold(claim)
        with contextlib.suppress(CheckpointError):  # they are read no more
            while self._replaced:
                number = self._replaced.pop()
                self._storage.delete(heartbeat_key(number))
                self._storage.delete(liveness_key(number))
        return claim

    def _hold(self, claim: Claim, *, adopted: bool = False) -> None:
        self._claim, self._pid = claim, os.getpid()
        if self._end_heartbeat is not None:
            self._end_heartbeat()
        if self._reopen is not None:
            self._end_heartbeat = weakref.finalize(self, Heartbeat(self._storage, claim.number, at_once=adopted).end)
        self._origin = None
        self._begun_step = self._committed_step = -1

    def _free(self, holders: Sequence[Claim]) -> frozenset[int]:
        """Ask all holders, as `take` wants it."""
        self._replaced.update(one.number for one in holders)
        silent = self._ask([one for index, one in enumerate(holders) if not self._need_not_ask(one, index)])
        self.wait_for_orphans()  # one may have died just now
        return silent

    def _need_not_ask(self, holder: Claim, index: int) -> bool:
        """Return whether it is settled: by our own claim; by our job, which has moved on from its own processes."""
        ours = self._answers[0] if self._answers is not None else None
        if ours not in (None, self._ignored_nonce) and ours == (self._moved_to(holder) or holder.nonce):
            return True  # one that has moved away from us answers elsewhere, for a run that has gone on there
        own = self.number
        if own is not None and holder.number <= own:
            return True
        return index > 0 and bool(self._job) and holder.job == self._job

    def _moved_to(self, holder: Claim) -> str | None:
        moved = read_moved(self._storage, holder.number)
        return moved.nonce if moved is not None else None

    def _ask(self, holders: Sequence[Claim]) -> frozenset[int]:
        if not holders:
            return frozenset()
        if self._take_over:
            self._log(f"claim {holders[0].number} is taken over without asking its holder")
            return frozenset()
        holders = [one for one in holders if not self._is_copied(one)]
        if not holders:
            return frozenset()
        return wait_until_free(
            holders,
            url=self._storage.url,
            job=self._job,
            grace_s=self._grace_s,
            signs=functools.partial(read_heartbeat, self._storage),
            moved=functools.partial(read_moved, self._storage),
            ignored_nonce=self._ignored_nonce,
            log=self._log,
        )

    def _is_copied(self, holder: Claim) -> bool:
        """Return whether this is a copy of the run that the holder writes to."""
        if self._reopen is None or holder.url in (None, self._storage.url):
            return False
        url, key = str(holder.url), claim_key(holder.number)
        if "://" not in url and (holder.endpoint or {}).get("boot_id") != boot_id():
            return False  # a path means the same only on one machine
        # Of a copy, what we write does not show at the holder's URL, though its claim does.
        probe = f"{CLAIMS}/probe-{secrets.token_hex(8)}"
        try:
            theirs = self._reopen(url)
            with contextlib.closing(theirs):
                if theirs.get(key) != self._storage.get(key):
                    return False
                self._storage.put(probe, b"is this a copy?")
                try:
                    theirs.size(probe)
                except Missing:
                    self._log(f"this is a copy of {url}, where the holder of its claim {holder.number} writes")
                    return True
                finally:
                    self._storage.delete(probe)
        except Exception:  # whatever that URL's client raises, which may want options that are not here
            return False  # it cannot be told
        return False

    def _listen(self, nonce: str) -> dict[str, Any] | None:
        try:
            server = LivenessServer(nonce=nonce, job=self._job)
            self._stop_server = weakref.finalize(self, server.close)
            return server.endpoint()
        except OSError as error:
            self._stop_listening()
            self._log(f"this job cannot be asked whether it is alive, since it cannot listen: {error}")
            return None

    def _stop_listening(self) -> None:
        if self._stop_server is not None:
            self._stop_server()

"""The right to write a run's storage: numbered, taken rarely, one winner per number.

    read the lineage  ->  ask who may go on with the run  ->  read the lineage again, for that took a while
      ->  create claims/<n+1>.json, which names what it goes on from  ->  read the lineage once more

A claim is taken at a start, after all was lost, when a node is lost that had not left in order, when those who are left
stand long after the last heartbeats, and by its own holder where the run goes back to an older checkpoint. Losing
the race for a number only means trying the next one.

The last arrow closes a race with a holder that is slow to notice: until our claim existed it could commit and sweep. If
the newest commit is no longer the one that we saw, we take one more number and name the newer one. If it is the same,
then every sweep of the old holder that may still be running was decided while our commit was its newest, or not there
yet, and a sweep never touches the newest ones: what we resume from stays. And whatever the old holder commits from then
on it does not report, since it looks for a newer claim after each commit, too (newer_claim.py).

Whoever dies on the way leaves a claim without a commit, which counts for nothing (lineage.py): what its holder had
committed stays the newest, and it goes on as soon as it is certain that we are gone. Whoever gives up says so, by
withdrawing what it had taken. So at most one of the two goes on, and nothing that was reported is lost:

    crash or refusal        the holder, if it lives               the run's newest
    before the claim        goes on                               whatever it commits
    after the claim         goes on once the claim is withdrawn   whatever it has committed
    after our first commit  is replaced                           ours, which goes on from all that it had reported

A job says what its state goes on from (`Origin`). Where that is no longer the newest, because another job has gone on
meanwhile, it is refused: its work would supersede the other's.

A listing that is stale (network filesystems keep theirs for up to a minute) would make us resume from an older commit,
and the newer ones would count no more. So a listing of commits is believed once no other commit is found by the data
that lies there; one of claims, since the number that it makes us try exists, and is then not ours.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from elastic_checkpoint.errors import CheckpointError, RunMovedOn, StorageError
from elastic_checkpoint.format.hashing import seal
from elastic_checkpoint.format.names import CLAIM_MAX, CLAIMS, COMMITS, CommitId, claim_key
from elastic_checkpoint.runs.claim_record import Claim, Origin, claim_body, held, read_claim
from elastic_checkpoint.runs.history import CommitsGone, History, Log, read_history, uncommitted
from elastic_checkpoint.runs.newer_claim import is_there, withdraw
from elastic_checkpoint.storage import AlreadyThere, Missing, Storage

_PAUSE_MAX_S = 2.0
_LOOKS = 5  # that show no commit of a run that has had some, until these count as gone: one of data may be stale, too


Free = Callable[[Sequence[Claim]], frozenset[int]]


def take(
    storage: Storage,
    *,
    endpoint: dict[str, Any] | None,
    nonce: str,
    job: str | None,
    world: dict[str, Any] | None,
    free: Free,
    log: Log,
    deadline_s: float,
    origin: Origin | None = None,
    put_off: Callable[[Callable[[], None]], None] = lambda withdraw: None,
) -> Claim:
    """Take the next claim.

    free        returns once none of the holders of these claims, newest first, can be going on with the run: the
                numbers of those that were only silent. Else raises ClaimHeld
    deadline_s  how long lost races are tried again; time spent in `free` does not count
    origin      None: whatever is the newest
    put_off     gets what withdraws the claims of an attempt that failed, where the storage does not let us now; who
                ends then need not call it
    raises      RunMovedOn where the newest is not what `origin` says; ClaimHeld, StorageError. Nothing is claimed then
    """
    taking = _ClaimAttempt(storage, free, log, deadline_s)
    try:
        while True:
            history = taking.look()
            newest = _first(history.lineage)
            if origin is not None and newest != origin.newest:
                raise _moved_on(storage, origin, newest)
            source = origin.source if origin is not None else newest
            if history.highest + 1 >= CLAIM_MAX:
                raise _no_number_left(storage, history.highest)
            claim = Claim(history.highest + 1, nonce, endpoint, job, world, source, time.time(), storage.url)
            if taking.create(claim, newest):
                return claim
            taking.pause()
    except BaseException as error:
        if isinstance(error, StorageError) and error.operation != "claim" and error.attempts > 1:
            put_off(taking.give_up)  # a storage that has failed for long would only fail for as long again
            raise
        try:
            taking.give_up()
        except CheckpointError:
            put_off(taking.give_up)
        raise


class _ClaimAttempt:
    """One attempt: what it has asked, and what it has created so far."""

    def __init__(self, storage: Storage, free: Free, log: Log, deadline_s: float) -> None:
        self._storage = storage
        self._free = free
        self._log = log
        self._deadline_s = deadline_s
        self._ends_s = time.monotonic() + deadline_s
        self._tries = 0
        self._asked: set[int] = set()
        self._ours: frozenset[int] = frozenset()
        self._unsure: Claim | None = None
        self._highest = 0
        self._in_the_way = ""

    def look(self) -> History:
        """Return the history, once all of its contenders have been found to be free. Raises `ClaimHeld`."""
        while True:
            history = self._read()
            contenders = [number for number in history.contending if number not in self._asked]
            holders = [claim for number in contenders if (claim := read_claim(self._storage, number, self._log))]
            self._asked.update(contenders)
            if not holders:
                return history
            began_s = time.monotonic()
            silent = self._free(holders)
            self._ends_s += time.monotonic() - began_s
            before, history = history, self._read()
            for claim in holders:
                made = [id for id in history.lineage if id.claim == claim.number and id not in before.lineage]
                if made and claim.number in silent:
                    raise held(claim, self._storage.url, f"it did not answer, but committed {made[0]} meanwhile")
            if all(number in self._asked for number in history.contending):
                return history

    def create(self, claim: Claim, newest: CommitId | None) -> bool:
        """Return whether the claim is ours, and `newest` still the newest commit."""
        self._tries += 1
        self._unsure = claim
        try:
            self._storage.put_new(claim_key(claim.number), seal(claim_body(claim)))
        except AlreadyThere:
            self._unsure = None
            try:
                self._storage.size(claim_key(claim.number))
                self._log(f"claim {claim.number} was taken by another writer first")
            except Missing as missing:  # a listing may lack it, too
                self._in_the_way = f"; {missing}, and is in the way"
            return False
        self._unsure = None
        self._ours |= {claim.number}
        history = self._read()
        return history.highest == claim.number and _first(history.lineage) == newest

    def pause(self) -> None:
        """Wait before another try, so that of two racers one gets ahead. Raises `StorageError` at the deadline."""
        if time.monotonic() > self._ends_s:
            raise StorageError(
                f"no claim of {self._storage.url} could be won in {self._tries} tries over {self._deadline_s:g} s"
                f"{self._in_the_way}\n"
                f"  state  the newest claim is {self._highest}; nothing of ours was committed\n"
                f"  next   {'remove it' if self._in_the_way else 'see how many jobs start here, and stop all but one'}",
                operation="claim",
                key=claim_key(self._highest + 1),
                attempts=self._tries,
            )
        time.sleep(random.uniform(0, min(_PAUSE_MAX_S, 0.02 * self._tries)))

    def give_up(self) -> None:
        """Leave nothing that stands in anybody's way. Raises CheckpointError.

        If the storage fails, too, our death will tell (newer_claim.py); as long as we live, it is to be called again.
        """
        unsure = self._unsure
        if unsure is not None and read_claim(self._storage, unsure.number, lambda line: None) == unsure:
            self._ours |= {unsure.number}
        for number in sorted(self._ours):
            withdraw(self._storage, number, "its taker gave up")

    def _read(self) -> History:
        history = _fresh_history(self._storage, self._log, self._ours, self._deadline_s)
        self._highest = history.highest
        return history


def _fresh_history(storage: Storage, log: Log, without: frozenset[int], deadline_s: float) -> History:
    """Return the history as of now. Raises StorageError where no listing shows what is there until the deadline."""
    ends_s, wait_s, looks = time.monotonic() + deadline_s, 0.0, 0
    while True:
        history, gone = None, None
        looks += 1
        try:
            history = read_history(storage, log, without=without)
            listed = (*history.lineage, *history.outside)
        except CommitsGone as error:  # or the listing is so old that it shows none
            gone, listed = error, error.listed
        saves = uncommitted(storage, listed)
        hidden = [id for id in saves if is_there(storage, id.manifest_key)]  # the listing was stale, or it is brand new
        if gone is not None and not hidden and looks >= _LOOKS:
            raise gone
        if history is not None and not hidden:
            if saves and not history.lineage:
                log(
                    f"{storage.url}: no commit is there, and data of {len(saves)} saves, the last of which is "
                    f"{saves[-1]}: none of them was ended, or their commits are gone"
                )
            return history
        if hidden and time.monotonic() > ends_s:
            raise StorageError(
                f"{storage.url}: for {deadline_s:g} s its listing of commits has not shown {hidden[-1]}, "
                "which is there\n"
                "  state  nothing was claimed: resuming from what is listed would lose what is not\n"
                "  next   see how this filesystem caches folders (for NFS: mount with lookupcache=none or a small "
                "acdirmax), then start again",
                operation="list",
                key=COMMITS,
                attempts=1,
            )
        if wait_s and hidden:
            log(f"{storage.url}: the listing of commits is stale: it lacks {hidden[-1]}, which is there; looking again")
        time.sleep(wait_s)
        wait_s = min(_PAUSE_MAX_S, 2 * wait_s + 0.05)


def _moved_on(storage: Storage, origin: Origin, newest: CommitId | None) -> RunMovedOn:
    loaded = f"loaded {origin.source}" if origin.source is not None else "found no checkpoint, and began anew"
    if origin.newest not in (None, origin.source):
        loaded += f", when {origin.newest} was the newest"
    found = f"step {newest.step}, {newest}" if newest is not None else "none any more"
    return RunMovedOn(
        f"{storage.url} was gone on with by another job since this one began: its newest checkpoint is {found}\n"
        f"  expected  this job {loaded}\n"
        "  state     nothing was claimed or saved; what is committed there stays as it is\n"
        "  next      stop this job, whose work does not go on from the newest; or load() again, and go on from there; "
        "or save to another URL",
        loaded=str(origin.source) if origin.source is not None else None,
        newest=str(newest) if newest is not None else None,
    )


def _no_number_left(storage: Storage, highest: int) -> CheckpointError:
    return CheckpointError(
        f"{storage.url}: there is no number for another claim\n"
        f"  found     an object below {CLAIMS}/ or {COMMITS}/ with the number {highest} in its name\n"
        f"  expected  numbers that claims have reached, one by one, far below {CLAIM_MAX:,}\n"
        "  state     nothing was claimed or saved\n"
        "  next      remove that object, which no job has made"
    )


def _first(lineage: tuple[CommitId, ...]) -> CommitId | None:
    return lineage[0] if lineage else None

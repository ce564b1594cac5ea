"""What the first step behind a save has read, which gradients that gave, and which weights.

Whoever goes on from that save computes the step again, and finds out whether the data, the script and the machine are
those that the run had.

    data/c00000007/s000001200-<nonce>/note.json
        {"step": 1200, "digest": …, "shares": 8, "batches": 8, "gradients": …, "weights": …, …}

Each share's batch is digested as the loop's body gets it, and the digests travel with the step's sums, so that they are
the same at any world size (in fast mode, at the same one). The step's gradients are the same there anyway, in exact
mode, and where kernels give the same bits each time; and so are the weights after its update, in which whatever an
optimizer, a schedule or a callback keeps beside its state shows; what the script sets behind it for the next update,
in what optimizers are set to then. The coordinator writes them beside the commit once that is there, and all workers
have compared both, in the step that follows or as the next save begins: else what a damaged coordinator holds alone
would be held against the script. It does so in a thread of its own. A run that is lost before has nothing to compare,
nor has one whose view changes between, or that has committed the next save by then.

Where all workers leave in order, nobody computes that step. Once everything is saved the coordinator passes its first
share for nothing, and leaves the digests of that share's batch and gradients; whoever resumes compares its own pass.

Behind the last step of a run none is read. What that one has read lies in its checkpoint, as `meta["last_read"]`: where
the run is made longer, it is read once more, and told of where it is another. It may be so honestly: between two epochs
the script may have changed what its data set gives.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import elastic_checkpoint
from elastic.data.data_plan import StepPlan
from elastic.errors import IdentityMismatch
from elastic.state.identity import CONTENT, SCRIPT

_CLOSE_S = 5.0  # for a last word; a run whose last one is missing has nothing to compare


@dataclass(frozen=True)
class StepDigest:
    """What is known of a step, for whoever computes it again.

    digest     of all batches of the step, a sum of 40 bits of each
    shares     that they are of; 0: they were not all digested
    batches    into which these were put
    gradients  digest of what all shares together gave; 0: there is none to compare
    weights    digest of the parameters once it is applied; likewise
    settings   digest of what optimizers and schedules are set to behind it, after the script's own code; likewise
    first_batch, first_gradients  digests of its first share's first micro-batch and of what that gave; likewise
    """

    step: int
    digest: int
    shares: int
    batches: int
    gradients: int
    weights: int = 0
    settings: int = 0
    first_batch: int = 0
    first_gradients: int = 0

    @classmethod
    def of_step(cls, plan: StepPlan, read: Sequence[int], gradients: int, first: Sequence[int]) -> StepDigest:
        """Return what a step that was exchanged has given; read, first: see Agreed."""
        digest, shares, batches = read if read and read[1] == len(plan.sizes) else (0, 0, 0)
        first_batch, first_gradients = first or (0, 0)
        return cls(
            plan.index, digest, shares, batches, gradients, first_batch=first_batch, first_gradients=first_gradients
        )

    @classmethod
    def of_share(cls, step: int, first: tuple[int, int]) -> StepDigest:
        """Return what is known of a step of which the first share alone was passed."""
        return cls(step, digest=0, shares=0, batches=0, gradients=0, first_batch=first[0], first_gradients=first[1])

    @classmethod
    def of(cls, note: object) -> StepDigest | None:
        """Return the note that lies beside a commit; None: it is none."""
        if not isinstance(note, dict) or not all(type(value) is int for value in note.values()):
            return None
        with suppress(TypeError):
            return cls(**note)
        return None

    def check(self, found: StepDigest, *, where: str) -> None:
        """Raise IdentityMismatch where `found` is another, of the same step, cut alike; weights once they are known.

        where: who knows it, for the error
        """
        if found.step != self.step:
            return
        if found.first_gradients and self.first_gradients:
            share = f"share 0 of step {self.step}"
            if found.first_batch != self.first_batch:
                raise self._reads_otherwise(share, found.first_batch, self.first_batch, where)
            if found.first_gradients != self.first_gradients:
                raise self._computes_otherwise(share, found.first_gradients, self.first_gradients, where)
        if (found.shares, found.batches) != (self.shares, self.batches):
            return
        step = f"step {self.step}"
        if found.digest != self.digest:
            raise self._reads_otherwise(step, found.digest, self.digest, where)
        if found.gradients and self.gradients and found.gradients != self.gradients:
            raise self._computes_otherwise(step, found.gradients, self.gradients, where)
        if found.weights and self.weights and found.weights != self.weights:
            raise self._updates_otherwise(found, where)

    def _reads_otherwise(self, what: str, here: int, there: int, where: str) -> IdentityMismatch:
        """Return the error for a step, or share, that reads other values."""
        return IdentityMismatch(
            f"{what} reads other values than it did before the run was ended: digest {here:x} here, {there:x} there\n"
            "  found  the same examples, by number, in the same order: the data itself, its transforms, or the collate "
            "function\n         give something else than when this step was read for the first time\n"
            f"  state  nothing was applied; what is saved in {where} is as it was\n"
            f"  next   bring back what was changed, or start under a new URL; data that is meant to be another: "
            f"checks=Checks(accept=[{CONTENT!r}]),\n         `elastic run --accept={CONTENT}`, or "
            f"ELASTIC_ACCEPT={CONTENT} in the environment",
            {CONTENT: (f"{here:x}", f"{there:x}")},
        )

    def check_settings(self, found: int, *, where: str) -> None:
        """Raise IdentityMismatch where optimizers, or schedules, are set otherwise behind this step."""
        if found == self.settings:
            return
        raise IdentityMismatch(
            f"behind step {self.step} optimizers, or schedules, are set otherwise than before the run was ended: "
            f"digest {found:x} here, {self.settings:x} there\n"
            "  found  the script, a schedule or a callback sets a rate by something that the run was not handed (a "
            "count in a\n         variable or an attribute, a best loss), or the script's own code is another one\n"
            f"  state  the step is applied in memory alone; what is saved in {where} is as it was\n"
            "  next   set rates from run.step_index, run.sums or run.evaluate, or hand over what they are made of "
            "(extra=, a\n         callback's own state); a script that is meant to be another: "
            f"checks=Checks(accept=[{SCRIPT!r}]), `elastic run\n         --accept={SCRIPT}`, or "
            f"ELASTIC_ACCEPT={SCRIPT}",
            {SCRIPT: (f"{found:x}", f"{self.settings:x}")},
        )

    def _updates_otherwise(self, found: StepDigest, where: str) -> IdentityMismatch:
        """Return the error for a step whose update gives other weights."""
        return IdentityMismatch(
            f"step {self.step} gives the same gradients, and its update other weights than before the run was ended: "
            f"digest {found.weights:x} here, {self.weights:x} there\n"
            "  found  the optimizer, a schedule, a callback or what else changes weights in the update is another one, "
            "or keeps\n         something that the run was not handed (a count in an attribute, a metric's value)\n"
            f"  state  the step is applied in memory alone; what is saved in {where} is as it was\n"
            "  next   keep that where its state_dict has it (an optimizer's in `state`, a module's in a buffer or "
            "get_extra_state, a\n         callback's in its own state), hand it over (extra=), or start under a new "
            f"URL; a script that is meant to\n         be another: checks=Checks(accept=[{SCRIPT!r}]), `elastic run "
            f"--accept={SCRIPT}`, or ELASTIC_ACCEPT={SCRIPT}",
            {SCRIPT: (f"{found.weights:x}", f"{self.weights:x}")},
        )

    def _computes_otherwise(self, what: str, here: int, there: int, where: str) -> IdentityMismatch:
        """Return the error for a step, or share, that gives other gradients."""
        known = self.shares or self.first_batch
        read = "reads the same, and" if known else "(of whose batches nobody knows whether they are the same)"
        return IdentityMismatch(
            f"{what} {read} gives other gradients than before the run was ended: digest {here:x} here, {there:x} "
            "there\n"
            "  found  the script's own code is another one (model, loss, body), or it keeps something that the run was "
            "not handed,\n         or this machine computes otherwise\n"
            f"  state  nothing was applied; what is saved in {where} is as it was\n"
            f"  next   bring back what was changed, hand over what is kept (extra=), or start under a new URL; a "
            f"script that is\n         meant to be another: checks=Checks(accept=[{SCRIPT!r}]), `elastic run "
            f"--accept={SCRIPT}`, or ELASTIC_ACCEPT={SCRIPT} in\n         the environment",
            {SCRIPT: (f"{here:x}", f"{there:x}")},
        )


class Notes:
    """Writes what the coordinator knows of the step behind a save beside the commit; url, options: of the storage."""

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._url = url
        self._options = dict(options) if options else None
        self._commit: elastic_checkpoint.Commit | None = None
        self._written: tuple[elastic_checkpoint.Commit, StepDigest] | None = None
        self.newest: StepDigest | None = None  # what this worker knows by itself
        self._agreed: StepDigest | None = None
        self._lock = threading.Lock()
        self._waiting: tuple[elastic_checkpoint.Commit, StepDigest] | None = None
        self._thread: threading.Thread | None = None

    def committed(self, commit: elastic_checkpoint.Commit) -> None:
        """Take the newest commit, and write what is known of its step beside it."""
        self._commit = commit
        self._match()

    def computed(self, read: StepDigest) -> None:
        """Take what this worker knows of a step."""
        self.newest = read

    def agreed(self) -> None:
        """Write what was taken last, once its commit is there: nobody knows anything else of it."""
        if self._agreed != self.newest:
            self._agreed = self.newest
            self._match()

    def close(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def _match(self) -> None:
        """Begin to write in a thread, where commit and step belong together and it is not written yet."""
        commit, read = self._commit, self._agreed
        if commit is None or read is None or commit.step != read.step or self._written == (commit, read):
            return
        self._written = commit, read
        with self._lock:
            begins = self._thread is None
            self._waiting = commit, read  # a storage that is slower than saves come gets the newest
            if begins:
                self._thread = threading.Thread(target=self._write, name="elastic-note", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        """Write the newest note that waits, until none does."""
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._thread = None
                    return
            commit, read = waiting
            with suppress(elastic_checkpoint.CheckpointError), self._storage() as storage:  # else it is missing
                storage.note(commit, asdict(read))

    def _storage(self) -> elastic_checkpoint.Checkpointer:
        return elastic_checkpoint.Checkpointer(self._url, storage_options=self._options)


def reads_otherwise(step: int) -> str:
    """Return what is said where the last step of a run that is made longer reads other values."""
    return (
        f"step {step}, read once more, gives other values than when the run ended there\n"
        "  found  the data itself, its transforms, the collate function, or what these depend on (the number of an "
        "epoch)\n         is not what it was\n"
        "  next   nothing, where the script gives its data set another face in each epoch; else bring back what was\n"
        "         changed, or start under a new URL"
    )

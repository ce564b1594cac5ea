"""The saves under way, one in each half of the arena: who has which half, and what came of each.

A half is free again when the writer process has said what came of its save, or has ended. Every save ends: the process
that writes it is killed where one takes too long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from elastic_checkpoint import arguments
from elastic_checkpoint.errors import CheckpointError, ClaimLost, SaveDropped, WriterDied
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.net.errors import error_from
from elastic_checkpoint.save.arena import HALVES
from elastic_checkpoint.save.commit import is_committed
from elastic_checkpoint.save.handle import Saving
from elastic_checkpoint.save.writer.messages import CancelSave, Done, Failed, FromWriter, Progress, SaveCancelled
from elastic_checkpoint.save.writer.process import WriterProcess
from elastic_checkpoint.storage import Storage

WhenBusy = Literal["wait", "skip", "replace"]

_ANSWER_S = 5.0


@dataclass(frozen=True)
class Rules:
    """The arguments of `Checkpointer` that concern saves in the background."""

    when_busy: WhenBusy
    failures_max: int
    finish_s: float
    budget_bytes: int

    def __post_init__(self) -> None:
        arguments.refuse(
            arguments.choice("when_busy", self.when_busy, "wait", "skip", "replace"),
            arguments.count(
                "failures_max", self.failures_max, "after how many failed saves in a row one raises", bound=True
            ),
            arguments.seconds("finish_s", self.finish_s, zero=False),
            arguments.count("budget_bytes", self.budget_bytes, "how many bytes may be on their way", bound=True),
        )


@dataclass(eq=False)
class InFlight:
    """A half that is taken, and the process that is to write it.

    committed  is called after the commit, before the save counts as done; must not block
    since_s    when its turn came, on the clock time.monotonic(): waiting behind another save does not count
    """

    number: int
    saving: Saving
    commit: Commit
    committed: Callable[[], None]
    process: WriterProcess
    since_s: float = field(default_factory=time.monotonic)


class InFlightSaves:
    """The halves of one arena after another; numbers its saves."""

    def __init__(self, storage: Storage, rules: Rules, log: Callable[[str], None], *, patience_s: float) -> None:
        """Track no save yet; patience_s: how long the writer process may take for one before it is killed."""
        self._storage = storage
        self._rules = rules
        self._log = log
        self._patience_s = patience_s
        self._changed = threading.Condition()  # guards everything below
        self._halves: list[InFlight | None] = [None] * HALVES
        self._number = 0
        self._newest: Saving | None = None
        self._failures: list[CheckpointError] = []
        self._lost: ClaimLost | None = None
        self._claim = 0  # this process goes on under that claim, which it or another of its job has taken
        self._refused: set[int] = set()
        self._given_up: set[int] = set()

    def raise_what_ended_saving(self) -> None:
        """Raise ClaimLost once the claim is lost, CheckpointError after `failures_max` failures in a row."""
        with self._changed:
            if self._lost is not None:
                raise self._lost
            failures = self._failures
            if len(failures) < self._rules.failures_max:
                return
            self._failures = []
        raise CheckpointError(
            f"{len(failures)} saves in a row failed; the last one: {failures[-1]}\n"
            "  state  what was committed before is whole; everything since then exists in memory only\n"
            "  next   repair the storage; catch this error to train on without, until as many saves failed again"
        ) from failures[-1]

    def set_claim(self, claim: int) -> None:
        """Go on under this claim: saves under way of an older one count if they were committed before it was taken."""
        with self._changed:
            self._claim = claim
            self._lost = None if self._is_passed(self._lost) else self._lost

    def _is_passed(self, error: CheckpointError | None) -> bool:
        """Return whether a save has lost a claim that is this process's no more, since it has a newer one."""
        return isinstance(error, ClaimLost) and error.ours < self._claim

    def _dropped_if_passed(self, step: int, error: CheckpointError | None) -> CheckpointError | None:
        if error is None or not self._is_passed(error):
            return error
        return dropped(step, f"it is of an older claim, and the job goes on under {self._claim}")

    # Halves

    def free(self) -> list[int]:
        """Return the halves that may be filled now."""
        with self._changed:
            return [half for half, one in enumerate(self._halves) if one is None]

    @property
    def busy(self) -> bool:
        """Return whether a save is under way."""
        return len(self.free()) < HALVES

    def next_half(self) -> int | None:
        """Return a half that may be filled, by the policy for when both are taken; None: this save is skipped."""
        if not self.free() and self._rules.when_busy == "skip":
            return None
        if not self.free() and self._rules.when_busy == "replace":
            self._replace()
        with self._changed:
            self._changed.wait_for(lambda: None in self._halves)  # ends: see the file's promise
            return self._halves.index(None)

    def wait_for_half(self, half: int) -> None:
        """Wait until this one may be filled."""
        with self._changed:
            self._changed.wait_for(lambda: self._halves[half] is None)

    def _replace(self) -> None:
        """Take back the younger of the two saves, unless it has been begun by now."""
        with self._changed:
            taken = [one for one in self._halves if one is not None]
        if len(taken) < HALVES:
            return
        younger = max(taken, key=lambda one: one.number)
        with contextlib.suppress(OSError):  # it died, and what it had is failing just now
            younger.process.send(CancelSave(number=younger.number))
        with self._changed:
            self._changed.wait_for(lambda: younger.saving.done or younger.number in self._refused, _ANSWER_S)

    def occupy_half(
        self, half: int, saving: Saving, commit: Commit, committed: Callable[[], None], process: WriterProcess
    ) -> int:
        """Count the half as taken; return the save's number."""
        with self._changed:
            self._number += 1
            self._halves[half] = InFlight(self._number, saving, commit, committed, process)
            self._newest = saving
            return self._number

    def release_half(self, half: int, number: int) -> bool:
        """Free the half; return False where its save has ended, and was reported, meanwhile."""
        with self._changed:
            one = self._halves[half]
            if one is None or one.number != number:
                return False
            self._halves[half] = None
            return True

    def settle(self) -> None:
        """Wait until no save is under way, whatever came of them."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._halves))

    def wait(self) -> None:
        """Wait until no save is under way. Raises what the newest one failed of."""
        self.settle()
        newest = self._newest
        if newest is not None and newest.error is not None:
            raise newest.error

    # What came of them

    def in_foreground(self, saving: Saving) -> None:
        """Make a save that takes no half the newest from here on."""
        with self._changed:
            self._newest = saving

    def report(self, saving: Saving, commit: Commit, error: CheckpointError | None) -> None:
        """Report what came of a save."""
        with self._changed:
            error = self._dropped_if_passed(saving.step, error)
            self._note(saving, commit, error)
        self._tell(saving, error)

    def _note(self, saving: Saving, commit: Commit, error: CheckpointError | None) -> None:
        """Note what came of a save, with `_changed` held."""
        if error is None:
            self._failures = []
            saving.succeed(commit)
            return
        self._failures = [*self._failures, error][-self._rules.failures_max :]
        self._lost = error if isinstance(error, ClaimLost) else self._lost
        saving.fail(error)

    def _tell(self, saving: Saving, error: CheckpointError | None) -> None:
        """Log why a save failed, without any lock: a log may wait for someone who waits for this save."""
        if error is not None:
            self._log(f"step {saving.step} could not be saved: {error}")

    def hear(self, said: FromWriter) -> None:
        """Take in what the writer process says of saves."""
        match said:
            case Progress():
                self._note_progress(said)
            case Done(number=number):
                self._finish(number, None)
            case Failed(number=number, error=error):
                self._finish(number, error_from(error))
            case SaveCancelled(number=number, cancelled=True):
                self._drop(number, "a newer save took its place before it was begun")
            case SaveCancelled(number=number):
                with self._changed:
                    self._refused.add(number)
                    self._changed.notify_all()

    def give_up(self) -> None:
        """Drop what is under way: its process is about to be killed, for what is saved next."""
        with self._changed:
            self._given_up |= {one.number for one in self._halves if one is not None}

    def process_ended(self, process: WriterProcess, why: str) -> None:
        """Settle what a process was writing that has ended: committed if its manifest is there, and lost if not."""
        with self._changed:
            affected = [one for one in self._halves if one is not None and one.process is process]
        for one in sorted(affected, key=lambda one: one.number):
            committed = is_committed(self._storage, one.commit.id)
            if not committed and one.number in self._given_up:
                self._drop(one.number, "it was given up for what is saved next")
            else:
                self._finish(one.number, None if committed else _died(one.saving.step, why))

    def watch(self, process: WriterProcess) -> None:
        """End a writer process that takes too long, and so all waiting for it."""
        with self._changed:
            mine = [one for one in self._halves if one is not None and one.process is process]
        if mine and time.monotonic() - min(mine, key=lambda one: one.number).since_s > self._patience_s:
            process.kill(f"a save was not finished within {self._rules.finish_s:g} s")

    def _finish(self, number: int, error: CheckpointError | None) -> None:
        with self._changed:
            half = self._half_of(number)
            one = None if half is None else self._halves[half]
            if half is None or one is None:
                return
            if error is None:
                one.committed()
            error = self._dropped_if_passed(one.saving.step, error)
            self._note(one.saving, one.commit, error)
            self._free(half, number)
        self._tell(one.saving, error)

    def _note_progress(self, said: Progress) -> None:
        with self._changed:
            half = self._half_of(said.number)
            if half is not None and (one := self._halves[half]) is not None:
                one.saving.has_stored(said.stored, of=said.of)

    def _drop(self, number: int, why: str) -> None:
        with self._changed:
            half = self._half_of(number)
            if half is not None and (one := self._halves[half]) is not None:
                one.saving.fail(dropped(one.saving.step, why))
                self._free(half, number)

    def _half_of(self, number: int) -> int | None:
        return next((h for h, one in enumerate(self._halves) if one is not None and one.number == number), None)

    def _free(self, half: int, number: int) -> None:
        self._halves[half] = None
        for one in self._halves:
            if one is not None and one.number > number:
                one.since_s = time.monotonic()
        self._changed.notify_all()


def dropped(step: int, why: str) -> SaveDropped:
    return SaveDropped(f"step {step} was not saved: {why}", step=step)


def _died(step: int, why: str) -> WriterDied:
    return WriterDied(
        f"step {step} was not saved: {why}\n"
        "  state  it is not committed, unless rank 0 of its group does so yet; earlier checkpoints are as they were\n"
        "  next   the next save starts a new writer process; if that one dies too, look for the kernel's OOM killer"
    )

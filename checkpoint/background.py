"""Saves that training does not wait for: copied into a warm arena, written by the writer process.

    a free half  ->  copy  ->  "staged"  ->  (the writer process) objects, count, look again, manifest  ->  "done"

Training stands still for the first three. What is staged is committed even if this process is killed right after; what
was being staged then is never looked at. Two saves can be under way, one in each half; what happens to a third is
`when_busy`. Where no writer process or too little memory is to be had, saves are made in the foreground, and one line
in the log says why.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from checkpoint.arena import HALVES, Arena, NoRoom, places
from checkpoint.errors import CheckpointError, ClaimLost, SaveDropped
from checkpoint.foreground import save_now
from checkpoint.messages import Message, error_from
from checkpoint.plan import Plan, Save
from checkpoint.process import WriterProcess
from checkpoint.saving import Saving
from checkpoint.staging import Stage
from checkpoint.storage import Missing, Scrubber, Storage

WhenBusy = Literal["wait", "skip", "replace"]

_START_S = 120.0  # a busy machine starts an interpreter slowly
_ANSWER_S = 5.0
_TEXT_SPARE_BYTES = 2**20  # what is no tensor may grow this much before a larger arena is needed


@dataclass(frozen=True)
class Rules:
    """The arguments of `Checkpointer` that concern saves in the background."""

    when_busy: WhenBusy
    failures_max: int
    finish_s: float
    budget_bytes: int

    def __post_init__(self) -> None:
        if self.when_busy not in ("wait", "skip", "replace"):
            raise CheckpointError(f"when_busy is {self.when_busy!r}; it can be 'wait', 'skip' or 'replace'")
        if self.failures_max < 1 or self.finish_s <= 0 or self.budget_bytes < 1:
            raise CheckpointError("failures_max, finish_s and budget_bytes must be positive")


class Unavailable(Exception):
    """There is no saving in the background here; the text says why."""


@dataclass(eq=False)
class _Underway:
    """A half that is taken, and the process that is to write it."""

    number: int
    save: Save
    saving: Saving
    committed: Callable[[Save], None]
    process: WriterProcess
    staged_s: float = field(default_factory=time.monotonic)


class Background:
    """The arena and the writer process of one checkpointer. Both are made by `warm`, or else by the first save."""

    def __init__(
        self,
        storage: Storage,
        opening: Message | None,
        rules: Rules,
        *,
        unusable: str | None,
        log: Callable[[str], None],
    ) -> None:
        """
        opening   what the writer process opens: url, options, retry_s; None where `unusable` says why there is none
        """
        self._storage = storage
        self._rules = rules
        self._log = log
        self._opening: Message = {"kind": "open", "budget_bytes": rules.budget_bytes, "finish_s": rules.finish_s}
        self._opening |= opening or {}
        self._scrub = Scrubber(self._opening.get("url", ""), self._opening.get("options", {}))
        self._told: set[str] = set()
        self._staging = threading.Lock()  # held by whoever fills a half or replaces the arena or the process
        self._process: WriterProcess | None = None
        self._arena: Arena | None = None
        self._stage: Stage | None = None
        self._warming: threading.Thread | None = None
        self._changed = threading.Condition()  # guards everything below
        self._halves: list[_Underway | None] = [None] * HALVES
        self._number = 0
        self._newest: Saving | None = None
        self._failures: list[CheckpointError] = []
        self._lost: ClaimLost | None = None
        self._ready: WriterProcess | None = None
        self._unusable = unusable
        self._last_words = ""
        self._refused: set[int] = set()

    @property
    def ready(self) -> bool:
        """Whether a save need not wait for a process or for memory to be had."""
        process, warming = self._process, self._warming
        begun = warming is not None and warming.is_alive()
        return not begun and self._arena is not None and process is not None and process.alive

    def warm(self, save: Save) -> None:
        """Starts the process and makes the arena for saves like this one, in a thread. Returns at once."""
        self._join_warming()
        plan, text_bytes, pinned = save.plan, _text_bytes(save), _on_gpu(save)

        def prepare() -> None:
            with self._staging, contextlib.suppress(Unavailable):  # the first save meets it again, and says it
                self._started()
                self._fitting(plan, text_bytes, pinned)

        self._warming = threading.Thread(target=prepare, name="checkpoint-warming", daemon=True)
        self._warming.start()

    def begin(self, save: Save, committed: Callable[[Save], None]) -> Saving:
        """Copies the state and returns; the rest goes on elsewhere.

        committed  called after the commit, before the save counts as done; must not block
        raises     CheckpointError after too many failures; ClaimLost once the claim is lost
        """
        self._join_warming()
        self._raise_what_ended_saving()
        with self._staging:
            saving = Saving(save.draft.id.step)
            half = self._free_half()
            if half is None:
                saving.fail(
                    _dropped(saving.step, f"two saves are under way, and when_busy is {self._rules.when_busy!r}")
                )
                return saving
            try:
                self._started()
                stage = self._fitting(save.plan, _text_bytes(save), _on_gpu(save))
                stage.copy(half, save.tensors, [save.draft.head, save.draft.tail])
                self._send_staged(half, save, saving, committed)
            except Unavailable as why:
                self._in_foreground(save, saving, committed, str(why))
            return saving

    def settle(self) -> None:
        """Returns when no save is under way, whatever came of them."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._halves))  # ends: the writer process has a deadline

    def wait(self) -> None:
        """Returns when no save is under way. Raises what the newest one failed of."""
        self.settle()
        newest = self._newest
        if newest is not None and newest.error is not None:
            raise newest.error

    def close(self) -> None:
        """Waits until what is staged is finished, and leaves no process, thread, descriptor or memory. Idempotent."""
        self._join_warming()
        with self._staging:
            if self._process is not None and not self._process.end(self._rules.finish_s):
                self._log(f"the writer process did not finish within {self._rules.finish_s:g} s and was killed")
            self._process = None
            self._drop_arena()

    def let_go(self) -> None:
        """For when nobody calls `close`: the process finishes what is staged, and ends."""
        if self._process is not None:
            self._process.let_go()

    # Before the copy

    def _raise_what_ended_saving(self) -> None:
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

    def _free_half(self) -> int | None:
        """A half that may be filled, by the policy for when both are taken."""
        with self._changed:
            if None not in self._halves and self._rules.when_busy == "skip":
                return None
            if None not in self._halves and self._rules.when_busy == "replace":
                self._replace()
            self._changed.wait_for(lambda: None in self._halves)
            return self._halves.index(None)

    def _replace(self) -> None:
        """Takes back the younger of the two saves, unless it has been begun by now."""
        younger = max((one for one in self._halves if one is not None), key=lambda one: one.number)
        with contextlib.suppress(OSError):  # it died, and what it had is failing just now
            younger.process.send({"kind": "take_back", "number": younger.number})
        self._changed.wait_for(lambda: younger.saving.done or younger.number in self._refused, _ANSWER_S)

    def _started(self) -> WriterProcess:
        """The writer process, ready. Raises `Unavailable`."""
        if self._unusable is not None:
            raise Unavailable(self._unusable)
        if self._process is not None and self._process.alive:
            return self._process
        self._process = None
        try:
            process = WriterProcess(self._hear, self._process_ended, self._watch)
        except OSError as error:
            raise Unavailable(f"no writer process can be started: {error}") from error
        try:
            process.send(self._opening)
            if self._arena is not None:
                process.send({"kind": "arena", "half_bytes": self._arena.half_bytes}, [self._arena.fd])
        except (TypeError, ValueError) as error:
            self._unusable = f"the storage options cannot be told to a writer process: {self._scrub(str(error))}"
        except OSError as error:
            self._last_words = f"the writer process cannot be told anything: {error}"
            process.kill("it does not listen")
        with self._changed:
            self._changed.wait_for(lambda: self._ready is process or self._unusable or not process.alive, _START_S)
        if self._ready is process and process.alive:
            self._process = process
            return process
        process.end(0)
        raise Unavailable(self._unusable or self._last_words)

    def _fitting(self, plan: Plan, text_bytes: int, pinned: bool) -> Stage:
        """Where this plan is staged; with a new arena if the present one is too small. Raises `Unavailable`."""
        needed = places(plan.sizes)[-1] + text_bytes + 2**14  # both texts begin at a page
        if self._arena is None or self._arena.half_bytes < needed:
            self.settle()
            self._drop_arena()
            try:
                self._arena = Arena(needed + _TEXT_SPARE_BYTES)
            except NoRoom as error:
                raise Unavailable(str(error)) from error
            self._arena.touch()
            if self._process is not None:
                with contextlib.suppress(OSError):  # it died; the one after it is told
                    self._process.send({"kind": "arena", "half_bytes": self._arena.half_bytes}, [self._arena.fd])
        if self._stage is None or self._stage.plan is not plan:
            self._stage = None  # memory cannot be pinned twice
            self._stage = Stage(plan, self._arena, pinned=pinned)
        return self._stage

    def _drop_arena(self) -> None:
        self._stage = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _join_warming(self) -> None:
        if self._warming is not None:
            self._warming.join()
            self._warming = None

    # The copy is made

    def _send_staged(self, half: int, save: Save, saving: Saving, committed: Callable[[Save], None]) -> None:
        """From here on the half counts. If the writer died just now, another one is told."""
        draft = save.draft
        message: Message = {"kind": "staged", "half": half, "id": draft.id._asdict(), "claim_nonce": draft.claim_nonce}
        message["sizes"] = [*draft.sizes, len(draft.head), len(draft.tail)]
        for _ in range(2):
            process = self._started()
            with self._changed:
                self._number += 1
                underway = _Underway(self._number, save, saving, committed, process)
                self._halves[half] = underway
                self._newest = saving
            try:
                process.send({**message, "number": underway.number})
                return
            except OSError:
                with self._changed:
                    if self._halves[half] is not underway:
                        return  # its end was noticed, and reported
                    self._halves[half] = None
                process.end(0)
        raise Unavailable("two writer processes died as they were told what is staged")

    def _in_foreground(self, save: Save, saving: Saving, committed: Callable[[Save], None], why: str) -> None:
        if why not in self._told:
            self._log(f"there is no saving in the background, so training waits for each commit: {why}")
        self._told.add(why)
        with self._changed:
            self._newest = saving
        try:
            save_now(self._storage, save)
        except CheckpointError as error:
            self._report(saving, save, error)
        else:
            committed(save)
            self._report(saving, save, None)

    def _report(self, saving: Saving, save: Save, error: CheckpointError | None) -> None:
        """What came of a save."""
        if error is None:
            self._failures = []
            saving.succeed(save.commit)
        else:
            self._failures = [*self._failures, error]
            self._lost = error if isinstance(error, ClaimLost) else self._lost
            saving.fail(error)
            self._log(f"step {saving.step} could not be saved; training goes on. {error}")

    # What the writer process says; in the thread that listens to it

    def _hear(self, process: WriterProcess, message: Message) -> None:
        with self._changed:
            match message:
                case {"kind": "ready"}:
                    self._ready = process
                case {"kind": "unusable", "why": why}:
                    self._unusable = f"the writer process cannot open the storage: {why}"
                case {"kind": "done", "number": number}:
                    self._finish(number, None)
                case {"kind": "failed", "number": number, "error": error}:
                    self._finish(number, error_from(error))
                case {"kind": "taken_back", "number": number, "taken": True}:
                    self._drop(number)
                case {"kind": "taken_back", "number": number}:
                    self._refused.add(number)
            self._changed.notify_all()

    def _process_ended(self, process: WriterProcess, why: str) -> None:
        """What it was writing is committed if its manifest is there, and lost if not."""
        self._last_words = self._scrub(why)
        with self._changed:
            left = [one for one in self._halves if one is not None and one.process is process]
        for one in sorted(left, key=lambda one: one.number):
            error = None if self._is_committed(one.save) else _died(one.saving.step, self._last_words)
            with self._changed:
                self._finish(one.number, error)
        with self._changed:
            self._changed.notify_all()

    def _watch(self, process: WriterProcess) -> None:
        """Ends a writer process that takes too long, and so all waiting for it."""
        now_s = time.monotonic()
        with self._changed:
            oldest_s = min((one.staged_s for one in self._halves if one and one.process is process), default=now_s)
        if now_s - oldest_s > self._rules.finish_s:
            process.kill(f"a save was not finished within {self._rules.finish_s:g} s")

    def _finish(self, number: int, error: CheckpointError | None) -> None:
        """With `_changed` held."""
        for half, one in enumerate(self._halves):
            if one is not None and one.number == number:
                if error is None:
                    one.committed(one.save)
                self._report(one.saving, one.save, error)
                self._halves[half] = None

    def _drop(self, number: int) -> None:
        """With `_changed` held."""
        for half, one in enumerate(self._halves):
            if one is not None and one.number == number:
                one.saving.fail(_dropped(one.saving.step, "a newer save took its place before it was begun"))
                self._halves[half] = None

    def _is_committed(self, save: Save) -> bool:
        try:
            self._storage.size(save.draft.id.manifest_key)
        except (Missing, CheckpointError):
            return False
        return True


def _text_bytes(save: Save) -> int:
    return len(save.draft.head) + len(save.draft.tail)


def _on_gpu(save: Save) -> bool:
    return any(tensor.device.type == "cuda" for tensor in save.tensors.values())


def _dropped(step: int, why: str) -> SaveDropped:
    return SaveDropped(f"step {step} was not saved: {why}", step=step)


def _died(step: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"step {step} was not saved: {why}\n"
        "  state  nothing of it was committed; earlier checkpoints are as they were\n"
        "  next   the next save starts a new writer process; if that one dies too, look for the kernel's OOM killer"
    )

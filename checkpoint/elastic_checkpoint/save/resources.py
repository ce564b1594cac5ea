"""What saves in the background need: an arena that is large enough, and a writer process that is ready.

Both are made by `warm` in a thread, or else by the first save; and made anew when the state has outgrown the arena, or
the process has died. Where one is not to be had, `Unavailable` says why, and saves are made in the foreground.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.save.arena import Arena, NoRoom, offsets
from elastic_checkpoint.save.in_flight import InFlightSaves, Rules
from elastic_checkpoint.save.planner import Plan
from elastic_checkpoint.save.staging import CannotPin, Stage
from elastic_checkpoint.save.writer import messages
from elastic_checkpoint.save.writer.messages import (
    ArenaDropped,
    Connect,
    Connected,
    Disconnected,
    DropArena,
    FromWriter,
    NotConnected,
    Open,
    Ready,
    Serve,
    Unusable,
)
from elastic_checkpoint.save.writer.process import WriterProcess
from elastic_checkpoint.storage import Scrubber, Storage

_START_S = 120.0  # a busy machine starts an interpreter slowly
_MEET_S = 120.0
_ANSWER_S = 5.0
_TEXT_SPARE_BYTES = 2**20  # what is no tensor may grow this much before a larger arena is needed


class Unavailable(Exception):
    """There is no saving in the background here; the text says why."""


class WriterResources:
    """An arena and a writer process.

    lock  is held by whoever fills a half, or replaces one of the two
    """

    def __init__(
        self,
        opening: Message | str,
        rules: Rules,
        in_flight: InFlightSaves,
        *,
        log: Callable[[str], None],
    ) -> None:
        """Start nothing yet.

        opening    what the writer process opens: url, options, retry_s; or why there can be none
        in_flight  hears what the process says of saves
        """
        self.lock = threading.Lock()
        self._rules = rules
        self._in_flight = in_flight
        self._log = log
        self._said: set[str] = set()
        known = opening if isinstance(opening, dict) else {"url": "", "options": {}, "retry_s": 0.0}
        self._opening = Open(**known, budget_bytes=rules.budget_bytes, finish_s=rules.finish_s)
        self._scrub = Scrubber(self._opening.url, self._opening.options)
        self._process: WriterProcess | None = None
        self._arena: Arena | None = None
        self._stage: Stage | None = None
        self._warming: threading.Thread | None = None
        self._changed = threading.Condition()  # guards everything below
        self._ready: WriterProcess | None = None
        self._answered: Connected | NotConnected | ArenaDropped | None = None  # by the process, to what was asked last
        self._met: Message | None = None
        self._unusable = opening if isinstance(opening, str) else None
        self._last_words = ""

    def warm(self, prepare: Callable[[], object]) -> None:
        """Call `prepare` in a thread, with the lock held. What is unavailable the first save meets again, and says."""
        self.join_warming()
        cuda: Any = torch.cuda
        gpu = cuda.current_device() if cuda.is_initialized() else None

        def work() -> None:
            if gpu is not None:
                cuda.set_device(gpu)  # a thread's is the first one else, which would be made ready, too
            with self.lock, contextlib.suppress(Unavailable):
                prepare()

        self._warming = threading.Thread(target=work, name="checkpoint-warming", daemon=True)
        self._warming.start()

    def join_warming(self) -> None:
        if self._warming is not None:
            self._warming.join()
            self._warming = None

    def close(self, within_s: float) -> None:
        """Wait until what is staged is finished, and leave no process, thread, descriptor or memory. Idempotent."""
        self.join_warming()
        with self.lock:
            if self._process is not None and not self._process.end(within_s):
                self._log(f"the writer process did not finish within {within_s:g} s and was killed")
            self._process = None
            self._drop_arena()

    def let_go(self) -> None:
        """Let the process finish what is staged, and end: for when nobody calls `close`."""
        if self._process is not None:
            self._process.let_go()

    def warn_no_writer(self, why: str) -> None:
        """Log one line for each reason."""
        if why not in self._said:
            self._log(f"there is no saving in the background, so training waits for each commit: {why}")
        self._said.add(why)

    # The writer process

    def started(self) -> WriterProcess:
        """Return the writer process, ready; it is started where there is none. Raises `Unavailable`."""
        if self._unusable is not None:
            raise Unavailable(self._unusable)
        if self._process is not None and self._process.alive:
            return self._process
        self._process = None
        try:
            process = WriterProcess(self._hear, self._process_ended, self._in_flight.watch)
        except OSError as error:
            raise Unavailable(f"no writer process can be started: {error}") from error
        try:
            process.send(self._opening)
            if self._arena is not None:
                process.send(messages.Arena(half_bytes=self._arena.half_bytes), [self._arena.fd])
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

    def replaced(self) -> WriterProcess:
        """Start another one, in the place of one that takes no message. Raises `Unavailable`."""
        if self._process is not None:
            self._process.end(0)
        return self.started()

    def kill(self) -> None:
        """End the process, with all that it was told."""
        if self._process is not None:
            self._process.end(0)
        self._process = None

    @property
    def process(self) -> WriterProcess | None:
        """Return the one that is there, if it lives."""
        return self._process if self._process is not None and self._process.alive else None

    @property
    def met(self) -> Message | None:
        """Return where the writers of the group meet that the process is among; None where it is in none."""
        return self._met if self.process is not None else None

    def meet(self, question: Serve | Connect) -> Message:
        """Have the process join the writers of a group, and return where they meet. Raises `Unavailable`."""
        answer = self._ask(question, (Connected, NotConnected), _MEET_S)
        if isinstance(answer, Connected):
            return answer.endpoint
        if isinstance(answer, NotConnected):
            raise Unavailable(f"this writer process and others cannot be connected: {answer.why}")
        raise Unavailable(self._last_words or "the writer process does not answer")

    def _ask(
        self, question: Serve | Connect | DropArena, kinds: tuple[type, ...], within_s: float
    ) -> Connected | NotConnected | ArenaDropped | None:
        """Ask the process, and return its answer, of one of these kinds; None where it died, or does not give one."""
        process = self._process
        if process is None:
            return None
        with self._changed:
            self._answered = None
        with contextlib.suppress(OSError):
            process.send(question)
            with self._changed:
                # An answer that an earlier question had given up waiting for may come in between.
                self._changed.wait_for(lambda: self._answer_of(kinds) is not None or not process.alive, within_s)
        return self._answer_of(kinds)

    def _answer_of(self, kinds: tuple[type, ...]) -> Connected | NotConnected | ArenaDropped | None:
        return self._answered if isinstance(self._answered, kinds) else None

    def _hear(self, process: WriterProcess, said: FromWriter) -> None:
        with self._changed:
            match said:
                case Ready():
                    self._ready = process
                case Unusable(why=why):
                    self._unusable = f"the writer process cannot open the storage: {why}"
                case Connected(endpoint=endpoint):
                    self._answered, self._met = said, endpoint
                case NotConnected() | ArenaDropped():
                    self._answered = said
                case Disconnected():
                    self._met = None
            self._changed.notify_all()
        self._in_flight.hear(said)

    def _process_ended(self, process: WriterProcess, why: str) -> None:
        self._last_words = self._scrub(why)
        self._in_flight.process_ended(process, self._last_words)
        with self._changed:
            self._met = None
            self._changed.notify_all()

    # The arena

    def fits(self, plan: Plan, text_bytes: int) -> bool:
        """Return whether `fitting` has nothing to make."""
        arena, stage = self._arena, self._stage
        return (
            arena is not None
            and stage is not None
            and stage.plan is plan
            and arena.half_bytes >= _needed(plan, text_bytes)
        )

    def fitting(self, plan: Plan, text_bytes: int, *, pinned: bool) -> Stage:
        """Return where this plan is staged; with a new arena if the present one is too small. Raises `Unavailable`."""
        needed = _needed(plan, text_bytes)
        if self._arena is None or self._arena.half_bytes < needed:
            self._in_flight.settle()
            self._drop_arena()
            try:
                self._arena = Arena(needed + _TEXT_SPARE_BYTES)
            except NoRoom as error:
                raise Unavailable(str(error)) from error
            self._arena.touch()
            if self._process is not None:
                with contextlib.suppress(OSError):  # it died; the one after it is told
                    self._process.send(messages.Arena(half_bytes=self._arena.half_bytes), [self._arena.fd])
        if self._stage is None or self._stage.plan is not plan:
            self._stage = None  # memory cannot be pinned twice
            try:
                self._stage = Stage(plan, self._arena, pinned=pinned)
            except CannotPin as error:
                raise Unavailable(str(error)) from error
        return self._stage

    def _drop_arena(self) -> None:
        """Drop the arena here, and in the writer process: two arenas at a time may be more than there is room for."""
        self._stage = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None
            self._ask(DropArena(), (ArenaDropped,), _ANSWER_S)


def _needed(plan: Plan, text_bytes: int) -> int:
    return offsets(plan.sizes)[-1] + text_bytes + 2**14  # both texts begin at a page


def on_gpu(tensors: dict[str, Any]) -> bool:
    return any(tensor.device.type == "cuda" for tensor in tensors.values())


def opening_of(
    url: str | os.PathLike[str] | Storage, storage: Storage, options: dict[str, Any], retry_s: float
) -> Message | str:
    """Return what a writer process opens, or why it cannot."""
    if not isinstance(url, str | os.PathLike):
        return "the storage is an object of this process"
    text = os.fspath(url)
    protocol, separator, _ = text.partition("://")
    if protocol == "memory":
        return "memory:// is for a single process"
    local = not separator or protocol in ("file", "local")
    return {"url": storage.url if local else text, "options": options, "retry_s": retry_s}

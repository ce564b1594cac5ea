"""What torch compiles goes with the run: kept in its storage, and taken from there where it would be compiled again.

    the first compilation of this process begins  ->  what storage has for this kind of machine is loaded, as it comes
    a step in which nothing more was compiled     ->  what storage does not have is kept there, in the background

A run that compiles nothing pays nothing: no request, no import. What is loaded ends as code of this process, so it is
kept and taken only by those who know the run's secret (sealed.py), and only if that outlives the launch. Whatever fails
here is one line, and the run compiles for itself.

Each worker keeps what it compiled itself: ranks meet other sizes, and have other devices. Rank 0 begins, and the others
wait a little, as most of them have compiled the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elastic.events import schema
from elastic.loop.compiled.arriving import arriving
from elastic.loop.compiled.storage import LABEL, CompiledStorage
from elastic.loop.context import Context
from elastic.loop.phases import Phases
from elastic.state import compilations, compiled_artifacts
from elastic.state.compiled_artifacts import Piece
from elastic_checkpoint.net.secret import MAKE_ONE, lasting_key

READ_WITHIN_S = 60.0
_QUIET_STEPS_MAX = 16  # of compiling, in a row: then what there is is kept
_APART_S, _WAIT_MAX_S = 2.0, 60.0
_FAREWELL_S = 1.0
_COMPILED_HERE = "not all compiled code in the run's storage can be used, and training goes on and compiles for itself"
_KEPT_NO_MORE = "this worker keeps no more of what it compiles in the run's storage"
_NO_SECRET = (
    "what torch compiles here is not kept with the run, for there is no secret of it to tell its own code by: "
    f"{MAKE_ONE}, the same at every launch; or leave Compute(compile_cache=) out"
)


class CompileCache:
    """The compiled code of one worker, on its way from the run's storage and to it.

    rank    the worker's present one
    phases  tell its agent that a wait for storage is no hang
    """

    def __init__(self, context: Context, rank: Callable[[], int], phases: Phases) -> None:
        self._context = context
        self._rank = rank
        self._phases = phases
        self._storage: CompiledStorage | None = None
        self._unwatch: Callable[[], None] | None = None
        self._skipping_headers: Callable[[], None] | None = None
        self._asked = self._compiled = self._said = False
        self._steps_due = 0
        self._keeping: threading.Thread | None = None
        self._closing = threading.Event()
        self._over = False

    def open(self) -> None:
        """Watch for compilations, if the run keeps their code. Call it where exact mode sets the compiler."""
        if self._context.config.compute.compile_cache:
            self._unwatch = compilations.watch(begins=self._begins, ended=self._ended)

    def poll(self) -> None:
        """Keep what was compiled once a step has compiled nothing more, or many have. Called at each boundary."""
        if self._unwatch is None:
            self.open()  # the script may have imported its compiler since
        if not self._compiled and not self._steps_due:
            return
        self._steps_due += 1
        quiet, self._compiled = not self._compiled, False
        if quiet or self._steps_due >= _QUIET_STEPS_MAX:
            self._keep()

    def close(self) -> None:
        """Stop watching; what is on its way to storage gets a moment."""
        if self._unwatch is not None:
            self._unwatch()
        if self._skipping_headers is not None:
            self._skipping_headers()
        self._closing.set()
        if self._keeping is not None:
            self._keeping.join(_FAREWELL_S)
        self._said = self._over = True

    def _begins(self) -> None:
        """Load what storage has, as the first compilation begins. In its midst, on any thread: no error may leave."""
        if self._asked or not compiled_artifacts.is_in_use():
            return
        self._asked = True
        self._phases.compiles()
        try:
            self._load()
        except Exception as error:  # torch's own, too: it compiles then
            self._warn(_COMPILED_HERE, [f"{type(error).__name__}: {error}"])
        if self._context.config.compute.mode != "exact":  # which says itself when the compilation has ended
            self._phases.has_compiled()

    def _ended(self) -> None:
        """Note that something was compiled, if there is a storage to keep it in."""
        self._compiled = self._storage is not None

    def _load(self) -> None:
        """Give torch what storage has for this kind of machine, and warn of what cannot be used."""
        config = self._context.config
        key = lasting_key(LABEL)
        if key is None:
            if self._context.launch.local_rank == 0:
                self._context.console.say(_NO_SECRET)
            return
        machine = compiled_artifacts.machine(config.device)
        self._storage = storage = CompiledStorage(config.url, config.storage_options, key=key, machine=machine)
        begun_s = time.monotonic()
        objects = nbytes = 0
        failed: list[str] = []
        try:
            for pieces in arriving(storage.read, READ_WITHIN_S):
                failed += self._given_to_torch(pieces)
                objects += 1
                nbytes += sum(piece.nbytes for piece in pieces)
        except Exception as error:  # of the storage: what came before serves
            failed.append(f"{type(error).__name__}: {error}")
        self._warn(_COMPILED_HERE, [*storage.refused, *failed])
        if objects:
            took_s = time.monotonic() - begun_s
            self._context.events.emit(schema.CompiledLoaded(objects=objects, bytes=nbytes, took_s=took_s))

    def _given_to_torch(self, pieces: list[Piece]) -> list[str]:
        """Hand pieces to torch; return why that failed, if it did: the other pieces are as good as before."""
        try:
            compiled_artifacts.load(pieces)
            if self._skipping_headers is None and any(piece.kind == compiled_artifacts.LIBRARY for piece in pieces):
                self._skipping_headers = compiled_artifacts.skip_headers()
        except Exception as error:  # torch's own
            return [f"{type(error).__name__}: {error}"]
        return []

    def _keep(self) -> None:
        """Start a thread that keeps what was compiled, unless one is at it."""
        storage = self._storage
        if self._keeping is not None and self._keeping.is_alive():
            return
        self._steps_due = 0
        if storage is None:
            return
        try:
            # on training's thread: only references are taken here
            made = compiled_artifacts.recorded(chosen_by_the_clock=self._context.config.compute.mode != "exact")
        except Exception as error:  # whatever torch's own may raise
            self._give_up(error)
            return
        self._keeping = threading.Thread(target=self._put, args=(storage, made), name="elastic-compiled", daemon=True)
        self._keeping.start()

    def _put(self, storage: CompiledStorage, made: list[Piece]) -> None:
        """Write to storage what it does not have, some time after the ranks below, which compile much the same."""
        if self._closing.wait(min(_APART_S * self._rank(), _WAIT_MAX_S)) and self._rank() > 0:
            return
        begun_s = time.monotonic()
        try:
            added = storage.keep(compiled_artifacts.pieces(made))
        except Exception as why:  # whatever a library of the storage's may raise
            self._give_up(why)
            return
        if added is not None and not self._over:
            took_s = time.monotonic() - begun_s
            self._context.events.emit(schema.CompiledKept(bytes=added.nbytes, gone=added.gone, took_s=took_s))

    def _give_up(self, why: Exception) -> None:
        """Keep nothing more on this worker, and warn why."""
        self._storage = None
        self._warn(_KEPT_NO_MORE, [f"{type(why).__name__}: {why}"])

    def _warn(self, what: str, reasons: list[str]) -> None:
        """Print the first reason in one line, once, on one worker of each node."""
        if not reasons or self._said:
            return
        self._said = True
        if self._context.launch.local_rank == 0:
            more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            self._context.console.warn(f"{what}: {' '.join(reasons[0].split())}{more}")

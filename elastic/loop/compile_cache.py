"""What torch compiles goes with the run: kept in its storage, and taken from there where it would be compiled again.

    the first compilation of this process begins  ->  what storage has for this kind of machine is loaded
    a step in which nothing more was compiled     ->  what storage does not have is kept there, in the background

A run that compiles nothing pays nothing: no request, no import. What is loaded ends as code of this process, so it is
kept and taken only by who knows the run's secret (sealed.py), and only if that outlives the launch. Whatever fails here
is one line, and the run compiles for itself.

Each worker keeps what it compiled itself: ranks meet other sizes, and have other devices. Rank 0 begins, and the others
wait a little, as most of them have compiled the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from checkpoint.net.secret import MAKE_ONE, lasting_key
from elastic.events import schema
from elastic.loop.compiled_storage import BYTES_MAX, LABEL, CompiledStorage
from elastic.loop.context import Context
from elastic.loop.phases import Phases
from elastic.state import compiled_artifacts
from elastic.state.compiled_artifacts import Artifacts

_READ_WITHIN_S = 60.0
_QUIET_STEPS_MAX = 16  # of compiling, in a row: then what there is is kept
_APART_S, _WAIT_MAX_S = 2.0, 60.0
_FAREWELL_S = 1.0
_COMPILED_HERE = "training goes on and compiles for itself, for compiled code in the run's storage"
_NO_SECRET = (
    "what torch compiles here is not kept with the run, for there is no secret of it to tell its own code by: "
    f"{MAKE_ONE}, the same at every launch; or leave compile_cache= out"
)


class CompileCache:
    """Of one worker. rank: its present one; phases: tell its agent that a wait for storage is no hang"""

    def __init__(self, context: Context, rank: Callable[[], int], phases: Phases) -> None:
        self._context = context
        self._rank = rank
        self._phases = phases
        self._storage: CompiledStorage | None = None
        self._remove: Callable[[], None] | None = None
        self._asked = self._compiled = False
        self._steps_due = 0
        self._known: set[str] = set()
        self._keeping: threading.Thread | None = None
        self._closing = threading.Event()

    def open(self) -> None:
        """To be called where exact mode's own settings of the compiler are made."""
        if self._context.config.compile_cache:
            self._remove = compiled_artifacts.watch(begins=self._begins, ended=self._ended)

    def look(self) -> None:
        """At a boundary: whether there is something to be kept."""
        if not self._compiled and not self._steps_due:
            return
        self._steps_due += 1
        quiet, self._compiled = not self._compiled, False
        if quiet or self._steps_due >= _QUIET_STEPS_MAX:
            self._keep()

    def close(self) -> None:
        """What is on its way to storage gets a moment."""
        if self._remove is not None:
            self._remove()
        self._closing.set()
        if self._keeping is not None:
            self._keeping.join(_FAREWELL_S)

    def _begins(self) -> None:
        """In the midst of a compilation, on whatever thread: nothing may leave here."""
        if self._asked or not compiled_artifacts.is_in_use():
            return
        self._asked = True
        self._phases.compiles()
        try:
            self._load()
        except Exception as error:  # torch's own, too: it compiles then
            self._warn(f"{_COMPILED_HERE} could not be loaded", f"{type(error).__name__}: {error}")
        if self._context.config.mode != "exact":  # which says itself when the compilation has ended
            self._phases.has_compiled()

    def _ended(self) -> None:
        self._compiled = self._storage is not None

    def _load(self) -> None:
        config = self._context.config
        key = lasting_key(LABEL)
        if key is None:
            if self._context.launch.local_rank == 0:
                self._context.console.say(_NO_SECRET)
            return
        machine = compiled_artifacts.machine(config.device)
        self._storage = storage = CompiledStorage(
            config.url, config.storage_options, key=key, machine=machine, bytes_max=BYTES_MAX
        )
        begun_s = time.monotonic()
        found, refused = _within(_READ_WITHIN_S, storage.read)
        if refused:
            more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
            self._warn(f"{_COMPILED_HERE} is not what this run has kept", f"{refused[0]}{more}")
        for artifacts in found:
            try:
                compiled_artifacts.load(artifacts)
            except Exception as error:  # torch's own; the others are as good as before
                self._warn(f"{_COMPILED_HERE} could not be loaded", f"{type(error).__name__}: {error}")
            self._known |= artifacts.names
        if found:
            nbytes = sum(artifacts.nbytes for artifacts in found)
            took_s = time.monotonic() - begun_s
            self._context.events.emit(schema.CompiledLoaded(objects=len(found), bytes=nbytes, took_s=took_s))

    def _keep(self) -> None:
        storage = self._storage
        if self._keeping is not None and self._keeping.is_alive():
            return
        self._steps_due = 0
        if storage is None:
            return
        exact = self._context.config.mode == "exact"
        try:
            made = compiled_artifacts.recorded(self._known, chosen_by_the_clock=not exact)
        except Exception as error:  # whatever torch's own may raise
            self._give_up(f"{type(error).__name__}: {error}")
            return
        if made is None:
            return
        self._known |= made.names
        self._keeping = threading.Thread(target=self._put, args=(storage, made), name="elastic-compiled", daemon=True)
        self._keeping.start()

    def _put(self, storage: CompiledStorage, made: Artifacts) -> None:
        if self._closing.wait(min(_APART_S * self._rank(), _WAIT_MAX_S)) and self._rank() > 0:
            return
        begun_s = time.monotonic()
        try:
            nbytes = storage.keep(made)
        except Exception as why:  # whatever a library of the storage's may raise
            self._give_up(f"{type(why).__name__}: {why}")
            return
        if nbytes:
            self._context.events.emit(schema.CompiledKept(bytes=nbytes, took_s=time.monotonic() - begun_s))

    def _give_up(self, why: str) -> None:
        """Of keeping, on this worker."""
        self._storage = None
        self._warn("this worker keeps no more of what it compiles in the run's storage", why)

    def _warn(self, what: str, why: str) -> None:
        """On one worker of each node, in one line."""
        if self._context.launch.local_rank == 0:
            self._context.console.warn(f"{what}: {' '.join(why.split())}")


def _within(
    seconds: float, function: Callable[[], tuple[list[Artifacts], list[str]]]
) -> tuple[list[Artifacts], list[str]]:
    """What it returns, or raises; TimeoutError where that takes longer."""
    results: list[tuple[list[Artifacts], list[str]]] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="elastic-compiled", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"the storage did not answer within {seconds:.0f} s")
    return results[0]

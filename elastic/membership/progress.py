"""Where a worker is, in memory that its agent reads: what tells a worker that computes from one that waits for it.

A worker writes what it is doing and since when; that costs it a microsecond and no system call. The agent reports
what it sees (launch/workers/watch.py), and the hub judges (stalls.py). While a worker waits for others it cannot be
the one that hangs.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

BYTES = 64


class Phase(IntEnum):
    """The kinds of things that a worker does. BETWEEN: two steps, in the script's own code; ENDED: run, or session."""

    STARTING, COMPUTING, WAITING, SAVING, EVALUATING, ENDED, BETWEEN, READING, LOADING = range(9)


LIMITED = (Phase.COMPUTING, Phase.BETWEEN, Phase.EVALUATING, Phase.SAVING, Phase.READING, Phase.LOADING)
"""There one can hang; elsewhere it waits for others."""

_LAYOUT = struct.Struct("<QqIIdd")
_PHASES = dict(enumerate(Phase))
_RUNNING_STEPS = 16
_LONG = 10  # times the hang limit: what may compile, or moves the whole state


@dataclass(frozen=True)
class Record:
    """A worker's newest entry. since_s: on time.monotonic(), when this phase began; limit_s: how long it may last."""

    generation: int = 0
    step: int = 0
    phase: Phase = Phase.STARTING
    sequence: int = 0
    since_s: float = 0.0
    limit_s: float = math.inf

    @classmethod
    def read(cls, fd: int) -> Record:
        """Return a worker's entry, for its agent; it may be half written: look twice before acting on it."""
        data = os.pread(fd, BYTES, 0)
        if len(data) < _LAYOUT.size:
            return cls()
        generation, step, phase, *rest = _LAYOUT.unpack_from(data)
        return cls(generation, step, _PHASES.get(phase, Phase.STARTING), *rest)

    @property
    def at_step(self) -> int | None:
        """Return the step that the worker is at; None before its first state."""
        return self.step if self.generation > 0 and self.step >= 0 else None

    @property
    def holds_state(self) -> bool:
        """Return whether the worker has the run's state by now."""
        # who claims and reads the run's storage (LOADING) is at a step before it has the state
        return self.at_step is not None and self.phase != Phase.LOADING


class Progress:
    """A worker's end of the memory that its agent reads. descriptor: of that memory; None: nobody looks."""

    def __init__(self, descriptor: int | None, *, hang_s: float) -> None:
        self._memory = mmap.mmap(descriptor, BYTES) if descriptor is not None else None
        self.is_read = descriptor is not None
        self._hang_s = hang_s
        self.phase = Phase.STARTING
        self._sequence = 0
        self._step_began_s: float | None = None
        self._steps_s: list[float] = []
        self._limit_s = _LONG * hang_s  # until a step is known: it may compile

    def at(self, phase: Phase, *, generation: int, step: int, limit_s: float | None = None) -> None:
        """Note that the worker is in this phase from now on.

        limit_s  how long it may last; default: the hang limit where one can hang, else none
        """
        self.phase = phase
        if self._memory is None:
            return
        self._sequence += 1
        if limit_s is None:
            limit_s = self._limits_s(phase)
        record = _LAYOUT.pack(generation, step, phase, self._sequence & 0xFFFFFFFF, time.monotonic(), limit_s)
        self._memory[: _LAYOUT.size] = record

    def step_done(self) -> None:
        """Count the step that ends here towards the limit of later ones, and begin the next."""
        now_s = time.monotonic()
        if self._step_began_s is not None:
            self._steps_s = [*self._steps_s[-_RUNNING_STEPS + 1 :], now_s - self._step_began_s]
            self._limit_s = max(self._hang_s, 10 * sorted(self._steps_s)[len(self._steps_s) // 2])  # ten median steps
        self._step_began_s = now_s

    def step_broken(self) -> None:
        """Leave the step under way out of what says how long steps take."""
        self._step_began_s = None

    def _limits_s(self, phase: Phase) -> float:
        """Return how long a phase may last, in seconds; inf where the worker waits for others."""
        if phase not in LIMITED:
            return math.inf
        return self.long_s if phase in (Phase.SAVING, Phase.LOADING) else self._limit_s

    @property
    def long_s(self) -> float:
        """Return the limit for what may compile or moves the whole state, in seconds."""
        return _LONG * self._hang_s

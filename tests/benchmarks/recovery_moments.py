"""Where a recovery's time goes: an observer that writes down when a worker passed each moment on its way to the first
step that it applied in a new view, and how long it computed in the steps just before. The moments of all other steps
are forgotten.

A step's computing is told from its first share to its last backward pass: in that one a worker waits for what it still
gives to newcomers, and then for its peers.
"""

from __future__ import annotations

import time
from collections import deque

from elastic.events.observer import ObservedRun, Observer

_STEPS = 40


def moments(_argument: str) -> Observer:
    return Moments()


class Moments(Observer):
    def __init__(self) -> None:
        self._passed: list[tuple[str, float]] = []
        self._computed: deque[tuple[float, float]] = deque(maxlen=_STEPS)  # when each step was applied, and seconds
        self._generation = 0

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        self._passed.append((moment, time.time()))
        if moment == "applied":
            if run.generation != self._generation:
                self._generation = run.generation
                run.events.emit_named("moments", passed=self._passed, computed=list(self._computed))
                self._computed.clear()
            elif (seconds := computing(self._passed)) is not None:
                self._computed.append((time.time(), seconds))
            self._passed = []


def computing(passed: list[tuple[str, float]]) -> float | None:
    """Seconds of the last attempt of a step, of one whose shares this worker had. passed: its moments, in order"""
    formed = max((index for index, (moment, _) in enumerate(passed) if moment == "form"), default=0)
    begun = [t for moment, t in passed[formed:] if moment == "data"]
    last = [t for moment, t in passed[formed:] if moment == "backward"]
    return last[-1] - begun[0] if begun and last else None

"""Where a recovery's time goes: an observer that writes down when a worker passed each moment on its way to the first
step that it applied in a new view. The moments of all other steps are forgotten."""

from __future__ import annotations

import time

from elastic.events.observer import ObservedRun, Observer


def moments(_argument: str) -> Observer:
    return Moments()


class Moments(Observer):
    def __init__(self) -> None:
        self._passed: list[tuple[str, float]] = []
        self._generation = 0

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        self._passed.append((moment, time.time()))
        if moment == "applied":
            if run.generation != self._generation:
                self._generation = run.generation
                run.events.emit_named("moments", passed=self._passed)
            self._passed = []

"""A worker that lags."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.drill.faults.base import Aftermath, Flag, Scene, WorkerFault


@dataclass(frozen=True)
class Slow(WorkerFault):
    """The worker that has this rank at that moment is slower from then on: it stands still before each of its next
    `shares` shares, for `seconds`."""

    seconds: float = 0.1
    shares: int = 30

    kind = "slow"
    short = "slow w{worker} down by {seconds} s in each of {shares} shares"
    sentence = "worker {worker} lags by {seconds:g} s in each of {shares} shares"
    flags = (Flag("slow", "a worker that lags: 0.1 s in each of 30 shares; W@…,seconds=S,shares=N for others"),)
    facts = ("seconds", "shares")

    def strike(self, scene: Scene) -> None:
        scene.slow_down(self.seconds, self.shares)

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS

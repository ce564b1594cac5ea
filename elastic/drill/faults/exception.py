"""An exception of the script's own code."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene, WorkerFault


class OnPurpose(Exception):
    """What a plan made the script raise."""


@dataclass(frozen=True)
class Raise(WorkerFault):
    """An exception in the training thread of the worker that has this rank at that moment, as of the script's own code.

    Its message names the fault: of two at one moment, equal to the letter, the second hits whoever redoes the step.
    """

    kind = "raise"
    short = "raise in w{worker}"
    sentence = "an exception in worker {worker}"
    flags = (Flag("exception", "an exception in the script's code"),)
    in_script = True
    loses_workers = True
    fails = True

    def strike(self, scene: Scene) -> None:
        raise OnPurpose(str(self))

    @classmethod
    def raised(cls, name: str, error: str) -> bool:
        return name == OnPurpose.__name__

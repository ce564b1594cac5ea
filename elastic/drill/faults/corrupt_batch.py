"""A wrong batch: what was read is not what arrives."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene
from elastic.drill.faults.silent import SilentFault


@dataclass(frozen=True)
class CorruptBatch(SilentFault):
    """A bit of the next batch changes between the data set and the script, in the worker that has this rank at that
    moment: in its first tensor, inside tuples, lists and dicts."""

    kind = "corrupt_batch"
    short = "flip a bit of a batch of w{worker}"
    sentence = "a bit of a batch changes on its way to the script of worker {worker}"
    flags = (Flag("corrupt-batch", "a bit of a share's batch changes between the data set and the script"),)
    found_as = ("ComputesWrongly", "NotLetIn", "StepError")
    usual_phase = "data"
    checks_shares = True

    def strike(self, scene: Scene) -> None:
        from elastic.drill.faults.bits import with_a_flip

        scene.change_batch(lambda batch: with_a_flip(batch)[0])

"""Several faults, and which of them a worker has reached. Every fault happens once, however often the run recovers."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from elastic.drill.faults.base import Fault
from elastic.drill.faults.moments import BEFORE_STEPS
from elastic.drill.faults.registry import document_of, fault_of
from elastic.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """The faults of a drill. `str` says them in one line; JSON carries them to the workers and into the record."""

    faults: tuple[Fault, ...] = ()
    seed: int | None = None

    def __str__(self) -> str:
        faults = " | ".join(map(str, self.faults)) or "no faults"
        return faults if self.seed is None else f"seed {self.seed}: {faults}"

    def to_json(self) -> str:
        return json.dumps({"seed": self.seed, "faults": [document_of(fault) for fault in self.faults]})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that to_json wrote. Raises ConfigError, which names what it does not know."""
        try:
            document = json.loads(text)
            faults = tuple(fault_of(one, f"faults[{at}]") for at, one in enumerate(document["faults"]))
            return cls(faults, document["seed"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"not a fault plan: {error}") from error


def due(
    plan: Plan,
    phase: str,
    *,
    step: int | None,
    rank: int,
    share: int | None,
    done: Collection[int],
    here: Collection[int] = (),
    world_size: int | None = None,
) -> list[int]:
    """Return which faults of the plan, by index, the worker with this rank sets off at this moment.

    step        as At.step counts; ignored before `loaded`
    share       of a phase that comes once per share, this one
    done        indices of the faults that have happened
    here        of these, those that happened in the view that this worker is in
    world_size  of the view that this worker is in
    """
    return [
        index
        for index, fault in enumerate(plan.faults)
        if index not in done
        and fault.when.phase == phase
        and fault.worker == rank
        and fault.when.share in (None, share)
        and fault.when.world_size in (None, world_size)
        and _its_turn(fault, index, step, done, here)
    ]


def _its_turn(fault: Fault, index: int, step: int | None, done: Collection[int], here: Collection[int]) -> bool:
    """Return whether the fault's step is reached, and the faults that it waits for have happened. See At.step."""
    when, those_before = fault.when, all(before in done for before in range(index))
    if when.step is None:
        return those_before and (when.phase in BEFORE_STEPS or index - 1 not in here)
    if when.later:
        return step is not None and step >= when.step and those_before
    return step == when.step

"""What became of a drill when its last launch ended: the verdict, and what it left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic.drill.judge.verdict import Verdict
from elastic.events.event import Event


@dataclass(frozen=True)
class LaunchEnd:
    """What a launch that ended left.

    Attributes:
        exit_code: Of the launcher; negative: the signal that ended it.
        left_behind: Processes, shared memory and temporary files that outlived it, in words; empty where all is well.
    """

    exit_code: int
    left_behind: tuple[str, ...]


@dataclass(frozen=True)
class End:
    """What became of a drilled run.

    Attributes:
        exit_code: Of the launcher; negative: the signal that ended it.
        output: What the last launch printed, both streams.
        events: Of all launches.
        verdict: The judge's, on all launches together; `print` shows it.
        left_behind: Processes, shared memory and temporary files that outlived it, in words; empty where all is well.
        not_reached: Faults of the plan whose moment never came, in words.
    """

    exit_code: int
    output: str
    events: Sequence[Event]
    verdict: Verdict
    left_behind: tuple[str, ...]
    not_reached: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every planned fault struck, every invariant holds, the launch ended with status 0, and nothing is left."""
        return self.verdict.ok and not (self.exit_code or self.left_behind or self.not_reached)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run recorded when it started."""
        return next((dict(e["config"]) for e in self.events if e["event"] == "run_started"), {})

    @property
    def batch_size(self) -> int:
        """Examples per step."""
        return int(self.config["batch_size"])

    @property
    def world_sizes(self) -> list[int]:
        """Of the views that were formed, in order."""
        return list(self.verdict.world_sizes)

    @property
    def examples_applied(self) -> Counter[int]:
        """Example index -> how often it is in the state that survived."""
        return self.verdict.examples_applied

    @property
    def steps_redone(self) -> int:
        """How often a step was begun again after work on it was lost."""
        return self.verdict.redone

    @property
    def weights_sha256(self) -> str | None:
        """The final digest; None if no worker finished."""
        return self.verdict.weights_sha256

"""A collective that one worker alone does not take part in, or takes part in twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Flag, Scene
from elastic.drill.faults.silent import SilentFault
from elastic.errors import ConfigError

_TIMES = {"skip": 0, "repeat": 2}


@dataclass(frozen=True)
class OutOfStep(SilentFault):
    """The worker that has this rank at that moment leaves out the next collective of its group, or takes part in it
    twice: what it takes part in next meets another one. At "exchange" that is of the step's row, at "backward" of a
    bucket of gradients, or of the row too where one bucket holds all.

    how  "skip" or "repeat"
    """

    how: str

    kind = "out_of_step"
    flags = (
        Flag("skip-exchange", "a worker leaves out a collective of the exchange", {"how": "skip"}),
        Flag("repeat-exchange", "a worker takes part twice in a collective of the exchange", {"how": "repeat"}),
    )
    usual_phase = "exchange"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in _TIMES:
            raise ConfigError(f"OutOfStep: how={self.how!r}; it is {' or '.join(_TIMES)}")

    def __str__(self) -> str:
        return f"{self.when}: {self.how} a collective in w{self.worker}"

    def in_words(self) -> str:
        return f"worker {self.worker} {'leaves out' if self.how == 'skip' else 'repeats'} a collective of the exchange"

    def strike(self, scene: Scene) -> None:
        from elastic.group import form

        starts = {name: getattr(form.DistributedGroup, name) for name in ("all_gather", "all_to_all", "all_reduce")}

        def once(name: str) -> Callable[..., form.Work]:
            def start(group: form.DistributedGroup, *arguments: Any) -> form.Work:
                for other, method in starts.items():
                    setattr(form.DistributedGroup, other, method)
                started = [starts[name](group, *arguments) for _ in range(_TIMES[self.how])]
                return started[-1] if started else form.Work(_Nothing(), name, None)

            return start

        for name in starts:
            setattr(form.DistributedGroup, name, once(name))


class _Nothing:
    """In place of a collective that was not started."""

    def wait(self) -> None:
        return

    def is_completed(self) -> bool:
        return True

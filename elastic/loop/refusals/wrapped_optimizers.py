"""Something of the script's own that steps the run's optimizer for the loop, as Lookahead does, and keeps count.

Its `step` is called in every body, where that of the run's optimizer does nothing until the update: what it counts or
keeps there depends on how many bodies a worker has. One that keeps nothing of its own is let pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elastic.errors import StepError
from elastic.loop.refusals.script_variables import values, variables
from elastic.state.trained_set import listed


class WrappedOptimizers:
    """
    optimizers  the run's
    handed      what else the run was handed, which may hold one
    """

    def __init__(self, optimizers: Iterable[Any], handed: Iterable[Any]) -> None:
        self._optimizers = {id(one) for one in optimizers}
        self._handed = {id(one) for one in handed} | self._optimizers
        self._kept: dict[str, dict[str, Any]] = {}

    def look(self) -> None:
        """Raises StepError for one that keeps something else than when it was first found."""
        for name, thing in variables().items():
            if id(thing) in self._handed or not self._wraps_one(thing):
                continue
            now = values(vars(thing))
            changed = [key for key, then in self._kept.setdefault(name, now).items() if now.get(key) != then]
            if changed:
                raise _counts_bodies(name, type(thing).__name__, changed)

    def _wraps_one(self, thing: Any) -> bool:
        holds = getattr(thing, "__dict__", {}).values()
        return (
            callable(getattr(thing, "step", None))
            and hasattr(thing, "zero_grad")
            and any(id(one) in self._optimizers for one in holds)
        )


def _counts_bodies(name: str, kind: str, changed: list[str]) -> StepError:
    return StepError(
        f"{name}, a {kind}, steps an optimizer of the run, and keeps something meanwhile: {listed(changed)}\n"
        "  found  its step() is called once a share, of which a worker has as many as the world size says; what it "
        "keeps is\n         neither saved nor given to those who join\n"
        "  state  what the run has applied stays\n"
        "  next   step the optimizer itself, and do the rest where a step is applied: if run.stepped, with extra= for "
        "what is kept"
    )

"""The moments of a run at which something can go wrong: which there are, and a worker's name for one. Values only.

Those of events/observer.py, and four more in the midst of something, which hooks from outside reach (inject/hooks.py).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from elastic.errors import ConfigError
from elastic.events.observer import MOMENTS

IN_BACKWARD = "in_backward"  # inside autograd, when half of the parameters have their gradient
IN_EXCHANGE = "in_exchange"  # a collective of the step's exchange is under way; not reached by a worker on its own
IN_UPDATE = "in_update"  # inside an optimizer's step, when a part of the parameters has been written
IN_TRANSFER = "in_transfer"  # this worker has begun to send a part of the state to a peer, or to receive one
PHASES = (*MOMENTS, IN_BACKWARD, IN_EXCHANGE, IN_UPDATE, IN_TRANSFER)
OF_A_VIEW = ("form", "formed", "transfer", IN_TRANSFER)  # they come in every view
BEFORE_STEPS = (*MOMENTS[: MOMENTS.index("loaded")], IN_TRANSFER)  # they come at every start or view, so have no step
OF_A_SHARE = ("data", "forward", "backward", IN_BACKWARD)
OF_A_STEP = (
    *OF_A_SHARE,
    "exchange",
    IN_EXCHANGE,
    "update",
    IN_UPDATE,
    "applied",
)  # every rank that has a share passes all of these
OF_THE_SCRIPT = (*OF_A_SHARE, "update", IN_UPDATE, "applied", "evaluate")  # the script's own code runs there, or could

BEGINS = {IN_BACKWARD: "backward", IN_EXCHANGE: "exchange", IN_UPDATE: "update", IN_TRANSFER: "transfer"}


def order_in_step(phase: str) -> float:
    """Return a key that sorts phases in the order in which a run passes them."""
    return MOMENTS.index(BEGINS[phase]) + 0.5 if phase in BEGINS else MOMENTS.index(phase)


@dataclass(frozen=True)
class At:
    """A moment that one worker passes.

    step        index of the step in flight or, from `applied` on, of the step applied last (-1: none). At `loaded`, of
                the step that comes next. None: the fault waits until all faults before it in the plan have happened,
                and then for the next such moment; at a step's moment under `elastic run`, for the next in a later view.
                So it can hit a recovery: `form` after a kill is the forming of the view that follows. Moments before
                `loaded` come in every view or at every start, and have no step
    phase       one of PHASES
    share       of the phases that come once per share, the share; None: the rank's first
    worker      for faults that strike no single worker, such as KillAll: the rank whose arrival sets it off
    world_size  only in a view of so many workers; None: of any. Not known yet at `start`
    later       or at the first such moment after that step: where the rank was not there, or a fault before it in the
                plan had not happened yet. Faults that may come later happen in the plan's order. A moment that comes
                in every view may then have a step: so many are applied by the worker that passes it
    output      once a line that the script prints has this text, of scripts for torchrun; then there is no step
    """

    step: int | None
    phase: str
    share: int | None = None
    worker: int | None = None
    world_size: int | None = None
    later: bool = False
    output: str | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            near = difflib.get_close_matches(self.phase, PHASES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PHASES)}"
            raise ConfigError(f"At: unknown phase {self.phase!r}; {hint}")
        if self.step is not None and self.phase in BEFORE_STEPS and not self.later:
            raise ConfigError(
                f"At: phase {self.phase!r} comes at every start or view, so it takes step=None, not {self.step}"
            )
        if self.share is not None and self.phase not in OF_A_SHARE:
            raise ConfigError(
                f"At: phase {self.phase!r} comes once per step; only {', '.join(OF_A_SHARE)} have a share"
            )

    def __str__(self) -> str:
        if self.output is not None:
            return f"output {self.output!r}"
        step = "" if self.step is None else f"step {self.step} "
        share = "" if self.share is None else f" of share {self.share}"
        worker = "" if self.worker is None else f" of worker {self.worker}"
        view = "" if self.world_size is None else f" in a view of {self.world_size}"
        return f"{step}{self.phase}{share}{worker}{view}"

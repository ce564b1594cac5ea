"""How often does a run save in a drill? What the user asks for, else what the script says, unless that shows nothing.

A script that saves every minute has not saved yet when a drill of seconds loses everything: the run would begin anew,
and nothing were said about going on from a checkpoint. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from elastic.drill.plan.drill_plan import DrillPlan
from elastic.errors import ConfigError

THE_SCRIPT_S = "script"
_SAVES = 8  # in a run, at least
_TIME = re.compile(r"\d+(\.\d+)?\s*(s|min|h)")


def asked(text: str) -> str | None:
    """Return the cadence that --save-every asks for; None: as the script says. Raises ConfigError."""
    text = text.strip()
    if text == THE_SCRIPT_S:
        return None
    if (text.isdecimal() and int(text) > 0) or _TIME.fullmatch(text):
        return text
    raise ConfigError(
        f"--save-every takes a number of steps, a time such as 5s, or {THE_SCRIPT_S!r} for what the script says; "
        f"found {text!r}"
    )


def with_saves(plan: DrillPlan, *, steps: int, saved: Sequence[int]) -> DrillPlan:
    """Return the plan with a cadence of its own, where all is lost before the script would have saved.

    saved  steps of the undisturbed run's checkpoints
    """
    lost = min((fault.when.step or 0 for fault in plan.faults if fault.restarts == "lost"), default=None)
    if plan.save_every is not None or lost is None or any(0 < step <= lost for step in saved):
        return plan
    return replace(plan, save_every=str(max(1, min(steps // _SAVES, lost // 2))))


def in_words(plan: DrillPlan) -> str | None:
    """Return how often the run of this plan saves, in words; None: as the script says."""
    every = plan.save_every
    if every is None:
        return None
    if every.isdecimal():
        return f"every {int(every)} steps" if int(every) > 1 else "after every step"
    return f"every {every}"

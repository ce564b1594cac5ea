"""How long may a run train between two saves? Pure: what was measured goes in, an interval with its reason comes out.

Saving often stops training often; saving rarely loses more work when all is lost. With C the seconds that training
stands still for one save, and M the mean time between losses *that cost a reload*, the interval that wastes least is
near sqrt(2 C M) (Young), more exactly Daly's. The loss of a worker among survivors costs no reload and is none of them:
under `elastic run` M is the time between losses of every copy, and not between those of machines.

    M          (1 + losses seen) / (4 h + time observed) is the expected rate: a gamma prior of one loss in 4 h, to
               which what was seen is added. Since the cost of an interval is linear in the rate, the best interval for
               an uncertain rate is the one for its mean
    not below  SLACK times what a save takes until it is durable: one must be committed before the next begins, and the
               storage, the network and a processor are left alone for half of the time
    not above  the work that may be at risk, whatever the formula says

It never changes what a run computes: a save reads the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from elastic.events import words

UNMEASURED_S = 60.0
"""The interval until a save has been measured."""
AT_RISK_MAX_S = 1800.0
SLACK = 2.0
PRIOR_LOSSES = 1.0
PRIOR_S = 4 * 3600.0
"""A spot node of AWS is lost every 2 to 17 h (V100, 2023): a run on one of them, until more is known."""
_MATERIAL = 0.25


class Bound(Enum):
    """The rule that decided an interval."""

    UNMEASURED = "unmeasured"
    OPTIMUM = "optimum"
    UPLOAD = "upload"
    AT_RISK = "at_risk"


@dataclass(frozen=True)
class Losses:
    """The losses that a run has seen: `count` that cost a reload, in `observed_s` seconds of being there."""

    count: int = 0
    observed_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """Return the seconds between two losses, as expected from the prior and what was seen."""
        return (PRIOR_S + self.observed_s) / (PRIOR_LOSSES + self.count)

    def after(self, seconds: float) -> Losses:
        """Return what is known so much later, when nothing was lost."""
        return Losses(self.count, self.observed_s + max(0.0, seconds))

    def resumed(self, *, claims: int, in_order: bool) -> Losses:
        """Return what a start knows that goes on from a checkpoint which says `self`.

        claims    how many claims were taken since that checkpoint's, this start's too: each is a start that went on
                  from it, and all but this one were lost before they saved
        in_order  whoever saved it meant to end there, so nothing was lost before the first of these starts
        """
        return Losses(self.count + max(0, claims - (1 if in_order else 0)), self.observed_s)

    def document(self) -> dict[str, Any]:
        """Return the losses as JSON has them."""
        return {"count": self.count, "observed_s": self.observed_s}

    @classmethod
    def from_document(cls, document: Any) -> Losses:
        """Read what `document` gave; of what is none, nothing was seen."""
        if not isinstance(document, dict):
            return cls()
        count, observed_s = document.get("count"), document.get("observed_s")
        if type(count) is not int or not isinstance(observed_s, (int, float)) or count < 0:
            return cls()
        return cls(count, float(observed_s)) if 0 <= observed_s < math.inf else cls()


@dataclass(frozen=True)
class Interval:
    """An interval and its reason. seconds: of training, from the end of one save's stall to the begin of the next."""

    seconds: float
    bound: Bound
    reason: str

    def differs(self, other: Interval) -> bool:
        """Tell whether the interval is so different that somebody should know."""
        far = abs(math.log(self.seconds / other.seconds)) > math.log1p(_MATERIAL)
        return far or self.bound is not other.bound


def decide(
    *,
    stall_s: float | None,
    durable_s: float | None,
    losses: Losses,
    at_risk_max_s: float = AT_RISK_MAX_S,
    save_costs_s: float = 0.0,
) -> Interval:
    """Decide the interval to save at.

    Args:
        stall_s: Seconds that training stands still for a save; None: not measured yet.
        durable_s: Seconds from a save's begin to its commit; None: not measured yet.
        losses: What the run has seen.
        at_risk_max_s: The most seconds of work that may be at risk; the time until a save is durable goes before.
        save_costs_s: What else a save costs, such as the price of its requests, as seconds of the whole fleet.
    """
    if stall_s is None or durable_s is None:
        return Interval(
            UNMEASURED_S, Bound.UNMEASURED, f"every {words.seconds(UNMEASURED_S)}: no save has been measured yet"
        )
    best_s = daly_s(stall_s + save_costs_s, losses.mean_s)
    # One save must be committed before the next begins, and storage and network are left alone half of the time.
    floor_s = SLACK * durable_s
    if floor_s > best_s:
        every = words.seconds(floor_s)
        why = f"a save takes {words.seconds(durable_s)} until it is durable"
        return Interval(floor_s, Bound.UPLOAD, f"every {every}: {why}")
    if best_s > at_risk_max_s:
        at_risk_s = max(at_risk_max_s, floor_s)
        every = words.seconds(at_risk_s)
        return Interval(at_risk_s, Bound.AT_RISK, f"every {every}: no more work than that is to be at risk")
    price = "" if not save_costs_s else f" and costs {words.seconds(save_costs_s)} of the fleet"
    seen = "" if losses.count else ", as is assumed until there is one"
    why = f"a save stalls {words.seconds(stall_s)}{price}, a full loss every {words.seconds(losses.mean_s)}{seen}"
    return Interval(best_s, Bound.OPTIMUM, f"every {words.seconds(best_s)}: {why}")


def young_s(stall_s: float, mean_s: float) -> float:
    """Return the interval that wastes least, to first order: sqrt(2 C M), in seconds of training between two saves.

    Args:
        stall_s: C, seconds that training stands still for a save; writing in the background does not count.
        mean_s: M, mean seconds between losses that cost a reload.

    Valid while C is much smaller than M: it leaves out losses during saves and reloads.
    Source: Young (1974), doi:10.1145/361147.361115
    """
    return math.sqrt(2 * stall_s * mean_s)


def daly_s(stall_s: float, mean_s: float) -> float:
    """Return what `young_s` does, for lifetimes that are exponential, to higher order in C / M.

    Valid while C < 2 M, within a few parts in a thousand of the least waste; beyond it is M.
    Source: Daly (2006), doi:10.1016/j.future.2004.11.016, whose figures 3 to 5 are in tests/pure/test_cadence.py
    """
    if stall_s >= 2 * mean_s:
        return mean_s
    half = stall_s / (2 * mean_s)
    return max(young_s(stall_s, mean_s) * (1 + math.sqrt(half) / 3 + half / 9) - stall_s, 0.0)


def waste(interval_s: float, *, stall_s: float, mean_s: float, reload_s: float = 0.0, durable_s: float = 0.0) -> float:
    """Return the share of a run's time, 0 to 1, that does not become steps which last, for exponential lifetimes.

    Args:
        interval_s: Training between two saves, in seconds.
        stall_s: C, of one save.
        mean_s: M, between losses that cost a reload.
        reload_s: From such a loss to the first step after it.
        durable_s: From a save's begin to its commit: a loss before that goes back to the save before.

    Valid for durable_s up to interval_s.
    Source: Daly (2006), doi:10.1016/j.future.2004.11.016: a segment of interval t and stall C takes
    M e^(R/M) (e^((t+C)/M) - 1) in the mean. To it is added, once a loss, what was done while a save was under way.
    """
    try:
        segment_s = mean_s * math.exp(reload_s / mean_s) * math.expm1((interval_s + stall_s) / mean_s)
    except OverflowError:  # nothing comes through for so long
        return 1.0
    lost_s = max(0.0, durable_s - stall_s) * segment_s / mean_s
    return 1.0 - interval_s / (segment_s + lost_s)

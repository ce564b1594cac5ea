"""Which steps are bad, and what a run does about one: `Update(on_bad=...)`. Pure.

    not finite   the loss or the norm of the gradient is infinite or not a number
    a spike      one of them lies further above the median of the last `window` steps than `spike` times their spread

The spread is 1.4826 times the median distance from the median, which is the standard deviation where values are normal,
and which single outliers do not move (Hampel 1974; Leys et al. 2013, doi:10.1016/j.jesp.2013.03.013). It counts as at
least a hundredth of the median, so that a loss that hardly moves has no spikes. 128 steps are llm.c's window.

With a GradScaler a gradient that is not finite is the scaler's own affair, which skips the optimizers and halves its
scale, as long as it can: at a scale of SCALE_FLOOR and below, where losses are made no larger, it is a bad step. That
is the floor at which DeepSpeed and Megatron-LM give up. A loss that is not finite is bad at any scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import median
from typing import Any, Literal, get_args

from elastic.errors import ConfigError

Action = Literal["stop", "skip", "rollback"]
SCALE_FLOOR = 1.0
_NORMAL = 1.4826  # standard deviation over median distance, where values are normal
_LEAST_SPREAD = 0.01  # of the median
_LOSS = "loss"


@dataclass(frozen=True)
class OnBad:
    """Says what a run does about a step whose loss or gradient is not finite, or a spike.

    `on_bad="skip"` is `OnBad("skip")`.

    Args:
        action: "stop" ends the run before the step's update. "skip" passes over its batch: nothing changes but the
            position. "rollback" goes back to the state of the newest regular save, and passes over all batches from
            there up to the bad one (as Chowdhery et al. 2022, PaLM, section 5.1).
        loss: The name under which the script adds its loss up, `step.add(loss=...)`; it is divided by the step's count.
            None: "loss", where there is one, and else the gradient alone decides.
        spike: How many times the spread of the last steps a loss or a norm may lie above their median, such as 10;
            None: only what is not finite is bad.
        window: How many steps these are; before there are so many, nothing is a spike.
        in_a_row_max: How many bad steps in a row are passed over; the next one ends the run.
        in_all_max: Likewise, of the whole run; None: any number.

    Raises:
        ConfigError: One of these cannot work.
    """

    action: Action
    _: KW_ONLY
    loss: str | None = None
    spike: float | None = None
    window: int = 128
    in_a_row_max: int = 10
    in_all_max: int | None = 100

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            known = ", ".join(repr(action) for action in get_args(Action))
            raise ConfigError(f"on_bad={self.action!r}; expected one of {known}, elastic.OnBad(...), or None")
        if self.loss is not None and (not isinstance(self.loss, str) or not self.loss):
            raise ConfigError(f"OnBad(loss={self.loss!r}); expected a name that step.add gets, or None")
        if self.spike is not None and (not _is_number(self.spike) or not 0 < self.spike < math.inf):
            raise ConfigError(f"OnBad(spike={self.spike!r}); expected how many times the spread, above 0, or None")
        for name, least in (("window", 8), ("in_a_row_max", 1), ("in_all_max", 1)):
            value = getattr(self, name)
            if value is None and name == "in_all_max":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"OnBad({name}={value!r}); expected a number of steps, {least} or more")

    def numerics(self) -> dict[str, Any]:
        """Return what of the rule a result's bits depend on; nothing of "stop", which changes no step."""
        if self.action == "stop":
            return {}
        spikes = {} if self.spike is None else {"spike": self.spike, "window": self.window}
        return {"action": self.action, "loss": self.loss, **spikes}


@dataclass(frozen=True)
class Signs:
    """The numbers that a step is judged by: exact, and the same on all workers.

    loss   None: there is none to look at
    norm   of the gradient, without the scaler's scale
    scale  of the scaler; None: there is no scaler
    """

    loss: float | None
    norm: float
    scale: float | None = None

    @property
    def by_name(self) -> dict[str, float]:
        """Return loss and norm by name, as events have them."""
        return {**({} if self.loss is None else {"loss": self.loss}), "norm": self.norm}

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm) and (self.loss is None or math.isfinite(self.loss))


def parse(given: str | OnBad | None) -> OnBad | None:
    """Return the rule that `on_bad=` stands for. Raises ConfigError."""
    if given is None or isinstance(given, OnBad):
        return given
    return OnBad(given)  # type: ignore[arg-type]  # it looks


def signs(rule: OnBad, sums: dict[str, Any], count: float, norm: float, scale: float | None) -> Signs:
    """Return a step's loss, norm and scale. Raises KeyError where a loss was named and is not there.

    norm  as it stands in `.grad`, times the scale
    """
    value = sums.get(_LOSS) if rule.loss is None else sums[rule.loss]
    loss = float(value) / count if value is not None and getattr(value, "ndim", 0) == 0 else None
    return Signs(loss, norm / scale if scale else norm, scale)


def why_bad(rule: OnBad, found: Signs, losses: Sequence[float], norms: Sequence[float]) -> str | None:
    """Say why a step is bad; None: it is not. losses, norms: of the last steps that were well, at most `window`."""
    if found.loss is not None and not math.isfinite(found.loss):
        return f"the loss is {found.loss}"
    if not math.isfinite(found.norm):
        if found.scale is not None and found.scale > SCALE_FLOOR:
            return None
        at = "" if found.scale is None else f", and the scaler's scale is {found.scale:g} already"
        return f"the gradient's norm is {found.norm}{at}"
    if rule.spike is None:
        return None
    for what, value, recent in (("loss", found.loss, losses), ("gradient's norm", found.norm, norms)):
        if value is not None and len(recent) >= rule.window and value > (bound := _bound(rule.spike, recent)):
            return f"the {what} is {value:.6g}, a spike: the last {rule.window} steps allow {bound:.6g}"
    return None


def too_many(rule: OnBad, *, in_a_row: int, in_all: int) -> str | None:
    """Say why the run ends at one more bad step, after so many that were passed over; None: it goes on."""
    if in_a_row >= rule.in_a_row_max:
        return f"{in_a_row} bad steps in a row were passed over before it, and in_a_row_max is {rule.in_a_row_max}"
    if rule.in_all_max is not None and in_all >= rule.in_all_max:
        return f"{in_all} bad steps were passed over before it, and in_all_max is {rule.in_all_max}"
    return None


def _bound(spike: float, recent: Sequence[float]) -> float:
    """Return the value above which a loss, or a norm, is a spike."""
    middle = median(recent)
    spread = _NORMAL * median(abs(value - middle) for value in recent)
    return middle + spike * max(spread, _LEAST_SPREAD * abs(middle))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

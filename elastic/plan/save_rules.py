"""When should a run save? What a script asks for as `save_every`, read once; and which times of day have passed. Pure.

200                      after every 200 steps: every worker knows by itself
"10min", "90s", "2h"     after so much training: the coordinator's clock decides, and the exchange tells all
"02:30 UTC"              once a day at that time, of any zone of the IANA database: "02:30 Europe/Berlin"
"auto"                   at the interval that wastes least (cadence.py)
["auto", "02:30 UTC"]    several of these: whichever comes first
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any

from elastic.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})\s+([A-Za-z][\w+/-]*)")
_UNITS_S = {"s": 1, "min": 60, "h": 3600}

SaveEvery = int | str | Sequence[int | str]


@dataclass(frozen=True)
class TimeOfDay:
    """A time that comes once a day, by the clock of a zone."""

    at: time
    zone: tzinfo

    def passed(self, since_t: float, now_t: float) -> bool:
        """Tell whether it came after `since_t` and not after `now_t`, both in unix seconds.

        Where a clock is put forward over it, it comes as much later; where it comes twice, the first time counts.
        """
        day = datetime.fromtimestamp(since_t, self.zone).date()
        last = datetime.fromtimestamp(now_t, self.zone).date()
        if (last - day).days > 2:
            return True
        while day <= last:
            if since_t < datetime.combine(day, self.at, self.zone).timestamp() <= now_t:
                return True
            day += timedelta(days=1)
        return False


@dataclass(frozen=True, kw_only=True)
class SaveRules:
    """The moments at which a run saves: whichever comes first.

    steps    after every so many, counted from the run's beginning
    seconds  of training
    auto     the interval is found while the run goes on
    times    of day
    """

    steps: int | None = None
    seconds: float | None = None
    auto: bool = False
    times: tuple[TimeOfDay, ...] = ()

    @classmethod
    def of(cls, save_every: SaveEvery) -> SaveRules:
        """Read what a script gives as `save_every`. Raises ConfigError."""
        several = isinstance(save_every, Sequence) and not isinstance(save_every, (str, bytes))
        given: list[Any] = [*save_every] if several else [save_every]  # type: ignore[misc]
        if not given:
            raise ConfigError(
                "save_every=[] names nothing; leave it out for 'auto', or name a time or a number of steps"
            )
        steps: list[int] = []
        seconds: list[float] = []
        times: list[TimeOfDay] = []
        for one in given:
            if one == "auto":
                continue
            if isinstance(one, int) and not isinstance(one, bool) and one > 0:
                steps.append(one)
            elif isinstance(one, str) and (match := _DURATION.fullmatch(one.strip())) and float(match[1]) > 0:
                seconds.append(float(match[1]) * _UNITS_S[match[2]])
            elif isinstance(one, str) and (match := _TIME_OF_DAY.fullmatch(one.strip())):
                times.append(_time_of_day(one, int(match[1]), int(match[2]), match[3]))
            else:
                raise ConfigError(
                    f"save_every={one!r}; expected a number of steps, a time such as '10min' or '90s', a time of day "
                    "with its zone such as '02:30 UTC', 'auto', or a list of these"
                )
        auto = "auto" in given
        if len(steps) > 1 or len(seconds) + auto > 1:
            raise ConfigError(f"save_every={save_every!r} names two intervals of one kind; leave the longer one out")
        return cls(
            steps=steps[0] if steps else None,
            seconds=seconds[0] if seconds else None,
            auto=auto,
            times=tuple(times),
        )


def _time_of_day(given: str, hour: int, minute: int, zone: str) -> TimeOfDay:
    """Read a time of day with its zone. Raises ConfigError."""
    from zoneinfo import ZoneInfo  # takes a moment to load, and few name a zone

    try:
        return TimeOfDay(time(hour, minute), timezone.utc if zone == "UTC" else ZoneInfo(zone))
    except (ValueError, KeyError, OSError) as wrong:  # ZoneInfoNotFoundError is a KeyError
        raise ConfigError(
            f"save_every={given!r}: {wrong}; expected a time of day such as '02:30 UTC' or '14:00 Europe/Berlin'"
        ) from wrong

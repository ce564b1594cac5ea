"""Has the run that a script makes live elsewhere, and end after some steps: the observer of `elastic reproduce`.

What it is told comes in a variable, for URLs may hold credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elastic.events.observer import ObservedRun, Observer

_VARIABLE = "ELASTIC_REPRODUCE"
OTHER_RUNS = "other-runs"  # the folder, beside the run, of those that the script makes beside it


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where a run is to live.

    name   the last part of the original's URL
    url    in its place
    options  of its storage; None: those that the script gives
    steps  after which it is stopped; None: where the script ends it
    """

    name: str
    url: str = field(repr=False)
    options: dict[str, Any] | None = field(default=None, repr=False)
    steps: int | None = None

    def environment(self, observer: str) -> dict[str, str]:
        """Return the variables that tell it to workers, which `observer` of "module:factory" then observes."""
        return {_VARIABLE: json.dumps(asdict(self)), "ELASTIC_OBSERVER": f"{observer}:"}

    @classmethod
    def told(cls) -> Elsewhere:
        """Return what this process's environment tells."""
        return cls(**told(_VARIABLE))


def observer(_: str) -> Observer:
    """Return the observer of a run that is reproduced."""
    return Redirecting(Elsewhere.told())


class Redirecting(Observer):
    """Has a run live elsewhere, and log nothing; another run of the same script goes beside it."""

    def __init__(self, to: Elsewhere) -> None:
        self.to = to
        self.is_meant = False

    def storage(self, url: str, storage_options: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
        name = last_part(url)
        self.is_meant = name == self.to.name
        options = self.to.options if self.to.options is not None else storage_options
        if "://" not in self.to.url:
            options = None  # those of the script are of another storage
        return self.to.url if self.is_meant else f"{self.to.url.rstrip('/')}/{OTHER_RUNS}/{name}", options

    def loggers(self, loggers: tuple[Any, ...]) -> tuple[Any, ...]:
        return ()  # they would write over the curves of the run that is made again: their URLs are the script's

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        steps = self.to.steps
        if self.is_meant and moment == "exchange" and steps is not None and run.step_index >= steps - 1:
            run.stop(f"{steps} steps were asked for")


def told(variable: str) -> dict[str, Any]:
    """Return what a variable of this process's environment tells."""
    return dict(json.loads(os.environ[variable]))


def last_part(url: str) -> str:
    """Return the last part of a URL's path."""
    return url.rstrip("/").rsplit("/", 1)[-1]

"""An observer that has its node told to leave at a named moment of its worker:

ELASTIC_OBSERVER=tests.kit.told_at:ToldAt:MOMENT
"""

from __future__ import annotations

import os
import signal

from elastic.events.observer import ObservedRun, Observer
from elastic.launch.worker import AGENT


class ToldAt(Observer):
    """Once, by SIGTERM to its agent."""

    def __init__(self, moment: str) -> None:
        self._moment: str | None = moment

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        if moment == self._moment:
            self._moment = None
            os.kill(int(os.environ[AGENT]), signal.SIGTERM)

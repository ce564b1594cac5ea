"""A simulated agent calls others to find the hub (launch/hub/roster_search.py), and asks who knows of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_checkpoint.net.dialing import Address
from tests.kit.simulated_hosts.network import Wire

if TYPE_CHECKING:
    from tests.kit.simulated_hosts.agent import Agent

LOOK_S = 1.0


class Dials:
    """Where an agent calls others. See elastic_checkpoint/net/dialing.py."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._closed = 0  # how often

    def begin(self, to: Address, done: Callable[[Wire | None, bool], None]) -> None:
        closed = self._closed

        def answered(wire: Wire | None, refused: bool) -> None:
            if self._closed == closed:
                done(wire, refused)
            elif wire is not None:
                wire.close(self._agent.machine)

        self._agent.dial(to[0], answered)

    def close(self) -> None:
        self._closed += 1


class Search:
    """By what lies beside the checkpoints, or in the rendezvous' store. See launch/hub/written_lookup.py."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._found: Wire | None = None
        self._ended = False
        self._looks()

    def take(self) -> Wire | None:
        found, self._found = self._found, None
        return found

    def end(self) -> None:
        self._ended = True
        if self._found is not None:
            self._found.close(self._agent.machine)

    def _looks(self) -> None:
        at = self._agent.hub_of_the_run()
        if self._ended:
            return
        if at is None:
            self._agent.machine.after(LOOK_S, self._looks)
        else:
            self._agent.dial(at, self._answered)

    def _answered(self, wire: Wire | None, refused: bool) -> None:
        if wire is None:
            self._agent.machine.after(LOOK_S, self._looks)
        elif self._ended:
            wire.close(self._agent.machine)
        else:
            self._found = wire

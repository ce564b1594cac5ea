"""An agent's connection to the hub elsewhere, which is lost when it ends, or when the hub is silent for too long."""

from __future__ import annotations

import time

from elastic.launch.hub import rules
from elastic.launch.hub.rules import Lease
from elastic.launch.hub.server import PING_S
from elastic.membership.messages.messages import HubIs, Ping, as_message
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.dialing import Address


class HubClient:
    """An agent's connection to the hub of another node.

    name        of the hub's node, as far as it is known
    connection  to it
    welcome     it has said that it is the hub
    """

    def __init__(self, name: str | None, address: Address) -> None:
        self.name = name
        self.address = address
        self.connection: Connection
        self._pinged_s = time.monotonic()
        self._lease = Lease(self._pinged_s)
        self.welcome = False

    def welcomed(self, roster: list[tuple[str, Address]]) -> None:
        """Take it for the hub, which has said so, and learn its node's name from the roster."""
        self.welcome = True
        self.name = next((name for name, at in roster if at == self.address), self.name)

    def heard(self) -> None:
        self._lease.heard(time.monotonic())

    def ping_if_due(self, now_s: float, *, held_up: bool) -> None:
        """Ping the hub every PING_S; its lease begins anew where this process was held up until now."""
        if held_up:
            self._lease.held_up(now_s)  # what the hub has said meanwhile is not read yet
        if now_s - self._pinged_s >= PING_S:
            self._pinged_s = now_s
            self.connection.say(as_message(Ping()))

    def lost_for_s(self, now_s: float) -> float | None:
        """Return for how long the hub has been silent, if that is too long, else None."""
        silent_s = self._lease.silent_s(now_s)
        return silent_s if rules.is_lost(silent_s, welcome=self.welcome) else None

    def where(self, asks: tuple[str | None, int | None]) -> HubIs:
        """Return the answer to whoever asks for the hub, and listens at `asks`."""
        silent_s = self._lease.silent_s(time.monotonic())
        return rules.answer_of_a_node(self.address, welcome=self.welcome, silent_s=silent_s, asks=asks)

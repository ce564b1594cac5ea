"""A hub that may not go on without those who are missing: they may have another one, to which it steps down.

Which of two yields to the other is rules.py's to say.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from elastic.launch.hub import rules
from elastic.launch.net.agent_port import AgentPort
from elastic.launch.node_rules import ThisNode
from elastic.membership.messages.messages import TO_AGENT, HubIs, WhereIsTheHub, as_message, parse
from elastic.membership.messages.wire import Message, WireError
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.dialing import Address, Dials
from elastic_checkpoint.net.event_loop import EventLoop
from elastic_checkpoint.net.transport import client_side


class OtherHubSearch:
    """Looks for another hub while this node's may not go on; yields_to: is called with the address of the found one."""

    def __init__(
        self, this_node: ThisNode, port: AgentPort, own: Address, yields_to: Callable[[Address], None]
    ) -> None:
        self._this_node = this_node
        self._port = port
        self._own = own
        self._yields_to = yields_to
        self._looked_s = 0.0

    def open(self, loop: EventLoop) -> None:
        self._loop = loop
        self._dials = Dials(loop)

    def wait(self, now_s: float) -> None:
        """Put the first look off: those who are missing may yet come."""
        self._looked_s = now_s

    def look(self, now_s: float, missing: Callable[[], Iterable[Address]]) -> None:
        """Ask those who are missing, every MEET_S, whether they have a hub."""
        if now_s - self._looked_s < rules.MEET_S:
            return
        self._looked_s = now_s
        self._dials.close()
        for address in missing():
            self._ask(address)

    def stop(self) -> None:
        self._dials.close()

    def _ask(self, address: Address) -> None:
        """Ask at one address where the hub is."""

        def done(sock: socket.socket | None, refused: bool) -> None:
            if sock is None:
                return

            def heard(message: Message) -> None:
                self._port.identified(connection)
                connection.close()
                message.pop("to", None)
                said = None
                with suppress(WireError):  # whoever has that address by now
                    said = parse(TO_AGENT, message)
                if isinstance(said, HubIs) and said.address is not None and rules.yields_to(said, self._own):
                    self._yields_to((said.address, said.port))

            connection = Connection(self._loop, sock, heard, lambda why: None, client_side(self._this_node.secret))
            self._port.add_pending(connection, address[0])
            connection.say(as_message(WhereIsTheHub(run=self._this_node.run)))

        self._dials.begin(address, done)

"""The run's hub in this process: hub.py decides, and the agents of other nodes are heard and told over TCP.

A node speaks for itself and its own workers, as what it called itself first; what is malformed, or said for others, is
dropped with a line in the log, whoever said it. The end of a connection is the node's loss, and so is its silence for a
lease: a host that is cut off or without power sends nothing, not even an end.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from elastic.launch.hub.rules import EVICT_S, HELD_UP_S, LEASE_S, Lease
from elastic.membership.hub.hub import Hub
from elastic.membership.hub.orders import Order
from elastic.membership.messages.known_lists import LISTED, KnownLists, ListUnknown
from elastic.membership.messages.messages import (
    TO_HUB,
    Bye,
    Handover,
    Hello,
    HubIs,
    InFull,
    Ping,
    ToAgent,
    ToHub,
    as_message,
    parse,
)
from elastic.membership.messages.wire import Message, WireError, encode
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.dialing import Address, Dial

Deliver = Callable[[str | None, Message], None]  # to a worker of this node, or to its agent (None)

PING_S = 0.4
_REFUSALS_SHOWN = 10  # of one node: what comes after them is dropped without a word


class HubServer:
    """The hub of the run, with the connections of the other nodes' agents.

    node: this node's name   lists: that it knows   deliver: to this node
    """

    def __init__(
        self,
        hub: Hub,
        node: str,
        loop: selectors.BaseSelector,
        lists: KnownLists,
        *,
        deliver: Deliver,
        say: Callable[[str], None],
    ) -> None:
        self.hub = hub
        self._node = node
        self._loop = loop
        self._lists = lists
        self._has: dict[str, dict[str, str | None]] = defaultdict(dict)  # node -> word -> the list that it had last
        self._held: dict[str, list[ToHub]] = {}  # what nodes have said since a hello that is awaited in full
        self._deliver = deliver
        self._say = say
        self._refusals: Counter[str] = Counter()
        self._nodes: dict[str, Connection] = {}
        self._listens: dict[str, Address] = {}
        self._leases: dict[str, Lease] = {}
        self._pinged_s = self._ticked_s = time.monotonic()
        self._dials: list[Dial] = []
        self._orders: deque[Order] = deque()
        self._encoded: tuple[Message | None, dict[str | None, bytes]] = None, {}  # the last message, since that list
        self._delivering = self._undecided = False

    @property
    def others(self) -> list[str]:
        return list(self._nodes)

    def takes(self, node: str, hello: Hello, connection: Connection) -> Callable[[Message], None]:
        """Take a node of the run that has come; return what hears what it says from now on."""
        if node in self._nodes:  # it has lost its connection, and we have not yet
            self.ended(self._nodes[node])
        self._nodes[node] = connection
        lease = self._leases[node] = Lease(time.monotonic())
        if hello.address is not None and hello.port is not None:
            self._listens[node] = hello.address, hello.port
        self._has[node] = {word: self._lists.newest(word, hello.knows) for word in LISTED}
        self._held.pop(node, None)

        def heard(message: Message) -> None:
            lease.heard(time.monotonic())
            self.hear(node, message)

        self._hear(node, hello)
        return heard

    def ended(self, connection: Connection) -> None:
        """Take a node for lost whose connection has ended, and ask its machine whether it is dead (succession.py)."""
        node = next((name for name, one in self._nodes.items() if one is connection), None)
        if node is not None:
            connection.close()
            del self._nodes[node]
            if any(isinstance(said, Bye) for said in self._held.pop(node, [])):
                self._carry_out(self.hub.without(time.monotonic(), node, departed=True))
            self.hub.loses(node, dead=False)
            self._undecided = True
            if node in self._listens:
                self._ask_if_dead(node)

    def hear(self, node: str, message: Message) -> None:
        """Have the hub hear a node's message, or drop one that is malformed."""
        try:
            said = parse(TO_HUB, message)
        except WireError as wrong:
            self._refuse(node, wrong)
            return
        if not isinstance(said, Ping):
            self._hear(node, said)

    def _hear(self, node: str, said: ToHub) -> None:
        """Have the hub hear; what comes after a hello whose lists are unknown waits for the hello in full."""
        if node in self._held and not isinstance(said, Hello):
            self._held[node].append(said)
            return
        try:
            if isinstance(said, Hello) and said.report is not None:
                said = replace(said, report=self._lists.unpack_report(said.report))
            self.hub.hear(time.monotonic(), node, said)
        except ListUnknown:
            self._held[node] = []
            self._nodes[node].say({"to": None, **as_message(InFull())})
            return
        except WireError as wrong:
            self._refuse(node, wrong)
            return
        self._undecided = True
        for held in self._held.pop(node, []):
            self._hear(node, held)

    def _refuse(self, node: str, wrong: WireError) -> None:
        """Say why a message is dropped, for a node's first ones."""
        self._refusals[node] += 1
        if self._refusals[node] <= _REFUSALS_SHOWN:
            last = "; more of the kind is dropped in silence" if self._refusals[node] == _REFUSALS_SHOWN else ""
            self._say(f"a message of {node} is dropped: {wrong}{last}")

    def settle(self) -> None:
        """Carry out what follows from all that was told: once, however much came together."""
        while self._undecided:
            self._undecided = False
            self._carry_out(self.hub.follows(time.monotonic()))

    def tick(self, now_s: float) -> None:
        """Ping the nodes, take silent ones for lost, and carry out what the hub decides as time passes."""
        if now_s - self._ticked_s > HELD_UP_S:
            for node in self._nodes:
                self._leases[node].held_up(now_s)
        self._ticked_s = now_s
        if now_s - self._pinged_s >= PING_S:
            self._pinged_s = now_s
            self._say_all(Ping())
        for node in [one for one in self._nodes if self._leases[one].silent_s(now_s) > EVICT_S]:
            self._say(f"{node} has been silent for {LEASE_S:.0f} s: it is taken for lost")
            self._nodes.pop(node).close()
            self.hub.loses(node, dead=False)
        self._carry_out(self.hub.tick(now_s))

    def hands_over(self) -> None:
        """Tell the others that this node leaves; from here on its hub decides nothing."""
        self._say_all(Handover())
        self._carry_out(self.hub.hands_over(time.monotonic(), self._node))

    def steps_down(self, to: Address | None) -> None:
        """Tell the others what was decided, and where the hub is now, if known; then close."""
        self._orders = deque(order for order in self._orders if order.node != self._node)
        self._send_orders()  # what was decided is said before: it may be why this hub goes
        host, port = to or (None, 0)
        self._say_all(HubIs(address=host, port=port))
        self.close()

    def missing(self) -> list[Address]:
        """Return where those nodes listen without whom the run may not go on."""
        return [self._listens[node] for node in self.hub.missing() if node in self._listens]

    def close(self) -> None:
        for connection in self._nodes.values():
            connection.close()
        for dial in self._dials:
            dial.close()
        self._nodes, self._dials = {}, []

    def knows(self, roster: Iterable[tuple[str, Address]]) -> None:
        """Take from the hub before this one where the nodes listen."""
        self._listens.update(roster)

    def invites(self) -> None:
        """Ask the machines of those who have not come to this hub whether they are there at all."""
        for node in self.hub.missing():
            if node in self._listens:
                self._ask_if_dead(node)

    def _say_all(self, said: ToAgent) -> None:
        for connection in list(self._nodes.values()):
            connection.say({"to": None, **as_message(said)})

    def _ask_if_dead(self, node: str) -> None:
        """Connect to a node's machine: if it refuses, the node's process has ended."""

        def done(sock: socket.socket | None) -> None:
            self._dials.remove(dial)
            if sock is not None:
                sock.close()
            elif dial.refused and node not in self._nodes:
                self.hub.loses(node, dead=dial.here, refuses=True)
                self._undecided = True

        dial = Dial(self._loop, self._listens[node], done)
        self._dials.append(dial)

    def _carry_out(self, orders: Iterable[Order]) -> None:
        """Send orders in order, also those that follow from what is delivered meanwhile."""
        self._orders.extend(orders)
        if self._delivering:
            return
        self._delivering = True
        self._send_orders()
        self._delivering = False

    def _send_orders(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if order.node == self._node:
                self._deliver(order.worker, order.message)
            elif order.node in self._nodes:
                self._nodes[order.node].send(self._line(order.node, self._addressees(order), order.message))

    def _line(self, node: str, to: str | list[str] | None, message: Message) -> bytes:
        """Return a message as bytes for this node, encoded once: a view is as long as the run has workers."""
        if self._encoded[0] is not message:
            self._encoded = message, {}
        encoded, since = self._encoded[1], self._has[node].get(message["say"])
        if since not in encoded:
            encoded[since] = encode(self._lists.pack(message, since))
        if (name := self._lists.name(message)) is not None:
            self._has[node][message["say"]] = name
        return b'{"to": ' + json.dumps(to).encode() + b", " + encoded[since].removeprefix(b"{")

    def _addressees(self, order: Order) -> str | list[str] | None:
        """Return whom of a node an order is for: all, if it goes to several workers, so that it is sent once."""
        workers = [order.worker] if order.worker is not None else []
        while workers and self._orders and self._orders[0].node == order.node and self._orders[0].worker is not None:
            if self._orders[0].message is not order.message:
                break
            workers.append(self._orders.popleft().worker or "")
        return workers if len(workers) > 1 else order.worker

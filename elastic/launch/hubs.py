"""Where a node's agent finds the hub: in its own process, or over TCP in the first node's agent.

Both ends of the seam: `HubHere` decides by hub.py and serves other nodes' agents, `HubElsewhere` is one of those. An
agent says hello with the run's nonce, then both sides talk in lines. The end of a connection is the node's loss.
A node speaks for itself and its own workers, as what it called itself first; what is malformed, or said for others, is
dropped with a line in the log, whoever said it.
The hub's own loss ends the run on this node: its workers leave, and `HubElsewhere` sees to it that one of them saves.
That survivors agree on a successor is not done; it would replace `gone` below.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Protocol

from checkpoint.net.keepalive import keep_alive
from elastic.launch.connection import Connection
from elastic.membership.hub import Hub, Order
from elastic.membership.leaving import SAVED_NOTHING, Holder, see_off
from elastic.membership.messages import (
    TO_AGENT,
    TO_HUB,
    TO_WORKER,
    Exited,
    Hello,
    Leaving,
    Released,
    RunIsOver,
    Save,
    Saved,
    ViewIsOver,
    as_message,
    parse,
)
from elastic.membership.wire import Message, WireError

Deliver = Callable[[str | None, Message], None]  # to a worker of this node, or to its agent (None)

_HELLO_S = 10.0
_UNKNOWN_MAX = 64  # connections that have not said hello; more is no run of ours
_REFUSALS_TOLD = 10  # of one node: what comes after them is dropped without a word


class AnyHub(Protocol):
    """What an agent needs of either."""

    def open(self, loop: selectors.BaseSelector, deliver: Deliver, gone: Callable[[str], None]) -> None:
        """Begins. gone(why): nothing can be said any more."""

    def tell(self, message: Message) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def others(self) -> list[str]:
        """The other nodes that need this process."""

    def left(self) -> None:
        """The workers of this node have left, while other nodes go on."""

    def close(self) -> None: ...


class HubHere:
    """node: this node's name   listener: for other nodes' agents; None on one node   nonce: known to the run only"""

    def __init__(
        self,
        hub: Hub,
        node: str,
        *,
        say: Callable[[str], None],
        listener: socket.socket | None = None,
        nonce: str = "",
    ) -> None:
        self._say = say
        self._refusals: Counter[str] = Counter()
        self._hub = hub
        self._node = node
        self._listener = listener
        self._nonce = nonce
        self._nodes: dict[str, Connection] = {}
        self._unknown: dict[Connection, float] = {}  # has not said hello; since when
        self._orders: deque[Order] = deque()
        self._delivering = False
        self._left = False

    def open(self, loop: selectors.BaseSelector, deliver: Deliver, gone: Callable[[str], None]) -> None:
        self._loop, self._deliver = loop, deliver
        if self._listener is not None:
            self._listener.setblocking(False)
            loop.register(self._listener, selectors.EVENT_READ, self._accept)

    def tell(self, message: Message) -> None:
        self._told(self._node, message)

    def tick(self, now_s: float) -> None:
        for connection in [one for one, since_s in self._unknown.items() if now_s - since_s > _HELLO_S]:
            del self._unknown[connection]
            connection.close()
        self._carry_out(self._hub.tick(now_s))

    def others(self) -> list[str]:
        return list(self._nodes)

    def left(self) -> None:
        if not self._left:
            self._left = True
            self._carry_out(self._hub.lost(time.monotonic(), self._node))

    def close(self) -> None:
        for connection in (*self._nodes.values(), *self._unknown):
            connection.close()
        self._nodes, self._unknown = {}, {}
        if self._listener is not None:
            self._loop.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        keep_alive(sock)
        node: list[str] = []  # its name, once it is known

        def heard(message: Message) -> None:
            if node:
                self._told(node[0], message)
                return
            del self._unknown[connection]
            try:
                name = self._introduced(message)
            except WireError as wrong:
                connection.say(as_message(RunIsOver(failed=True, why=str(wrong))))
                connection.close()
                return
            node.append(name)
            self._nodes[name] = connection
            self._told(name, message)

        def ended(_why: str | None) -> None:
            self._unknown.pop(connection, None)
            if node and self._nodes.get(node[0]) is connection:
                del self._nodes[node[0]]
                self._carry_out(self._hub.lost(time.monotonic(), node[0]))

        connection = Connection(self._loop, sock, heard, ended)
        self._unknown[connection] = time.monotonic()
        if len(self._unknown) > _UNKNOWN_MAX:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.close()

    def _introduced(self, message: Message) -> str:
        """The name of the node whose first word this is. Raises WireError."""
        another = WireError("this hub belongs to another run")
        try:
            hello = parse(TO_HUB, message)
        except WireError:
            raise another from None
        if not isinstance(hello, Hello) or not hmac.compare_digest(_bytes(hello.run or ""), _bytes(self._nonce)):
            raise another
        if not hello.node or hello.node == self._node or hello.node in self._nodes:
            raise WireError(f"a node that calls itself {hello.node!r} is here already")
        return hello.node

    def _told(self, node: str, message: Message) -> None:
        try:
            orders = self._hub.receive(time.monotonic(), node, message)
        except WireError as wrong:
            self._refusals[node] += 1
            if self._refusals[node] <= _REFUSALS_TOLD:
                last = "; more of the kind is dropped in silence" if self._refusals[node] == _REFUSALS_TOLD else ""
                self._say(f"a message of {node} is dropped: {wrong}{last}")
            return
        self._carry_out(orders)

    def _carry_out(self, orders: Iterable[Order]) -> None:
        """In order, also those that follow from what is delivered meanwhile."""
        self._orders.extend(orders)
        if self._delivering:
            return
        self._delivering = True
        while self._orders:
            order = self._orders.popleft()
            if order.node == self._node:
                self._deliver(order.worker, order.message)
            elif order.node in self._nodes:
                self._nodes[order.node].say({"to": order.worker, **order.message})
        self._delivering = False


class HubElsewhere:
    """connected: to the hub's agent; hello was not said yet"""

    def __init__(self, connected: socket.socket, *, nonce: str, say: Callable[[str], None]) -> None:
        self._say = say
        self._socket = connected
        self._nonce = nonce
        self._connection: Connection | None = None
        self._leavers: dict[str, Leaving] = {}  # of this node
        self._asked: str | None = None
        self._saved = SAVED_NOTHING
        self._gone = False

    def open(self, loop: selectors.BaseSelector, deliver: Deliver, gone: Callable[[str], None]) -> None:
        def heard(message: Message) -> None:
            worker = message.pop("to", None)
            try:
                parse(TO_AGENT if worker is None else TO_WORKER, message)
            except WireError as wrong:
                self._say(f"a message of the hub is dropped: {wrong}")
                return
            deliver(worker if isinstance(worker, str) else None, message)

        keep_alive(self._socket)
        self._deliver = deliver

        def ended(why: str | None) -> None:
            self._gone = True
            gone(why or "it ended")
            self._see_off()

        self._connection = Connection(loop, self._socket, heard, ended)

    def tell(self, message: Message) -> None:
        assert self._connection is not None
        self._note(message)
        if self._gone:
            self._see_off()
        else:
            self._connection.say({**message, "run": self._nonce} if message["say"] == "hello" else message)

    def _note(self, message: Message) -> None:
        """Who of this node waits to leave, should the hub be gone one day."""
        match parse(TO_HUB, message):
            case Leaving() as leaving:
                self._leavers[leaving.worker] = leaving
                self._saved = max(self._saved, leaving.step if leaving.saved else SAVED_NOTHING)
            case Saved(step=step):
                self._saved = max(self._saved, step)
            case Exited(worker=worker) | ViewIsOver(worker=worker):
                self._leavers.pop(worker, None)

    def _see_off(self) -> None:
        """In the hub's place: no view comes, and one of this node's workers saves before they go."""
        holders = [
            Holder(worker=worker, step=said.step, whole=said.whole, torn=said.torn)
            for worker, said in self._leavers.items()
        ]
        parting = see_off(holders, [], go_on=False, saved=self._saved)
        for worker, safe in [*((one, True) for one in parting.go), *((one, False) for one in parting.lost)]:
            del self._leavers[worker]
            self._deliver(worker, as_message(Released(safe=safe)))
        if parting.saves is not None and self._asked not in self._leavers:
            self._asked = parting.saves
            self._deliver(parting.saves, as_message(Save(generation=self._leavers[parting.saves].generation)))

    def tick(self, now_s: float) -> None:
        pass

    def others(self) -> list[str]:
        return []

    def left(self) -> None:
        pass

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _bytes(text: str) -> bytes:
    """Of any text that JSON may carry, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")

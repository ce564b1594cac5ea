"""The port on which an agent listens for the agents of other nodes, and who of those that come is of this run.

Any agent may come to be the hub, so each listens. Whoever connects is a stranger until it has said hello with what only
agents of this run know, and has a while for that; others are refused, and told why. Whoever asks where the hub is gets
an answer and stays a stranger. What becomes of one that has said hello is hub/link.py's.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from elastic.launch.net.event_loop import EventLoop
from elastic.launch.net.loop_connection import LoopConnection
from elastic.launch.node_rules import ThisNode
from elastic.membership.messages.messages import TO_LISTENER, Hello, Refusal, WhereIsTheHub, as_message, parse
from elastic.membership.messages.wire import Message, WireError
from elastic_checkpoint.net.keepalive import keep_alive
from elastic_checkpoint.net.listener import Strangers, most_strangers
from elastic_checkpoint.net.secured import server_side
from elastic_checkpoint.net.transport import SAME_FOR_ALL

HELLO_S = 10.0  # for one that connects, to say who it is
REFUSALS_SHOWN = 10  # hosts; what strangers do fills no log
ACCEPTED_MAX = 64  # in one turn: of thousands that come at a takeover, who is here already is heard between them


@dataclass(frozen=True)
class Caller:
    """Another node's agent, which says hello.

    heard  to be given what hears it from now on
    said   its hello, and what it has said since
    """

    hello: Hello
    connection: LoopConnection
    heard: list[Callable[[Message], None]]
    said: list[Message]
    since_s: float


class AgentPort:
    """Where this node's agent listens, and the strangers that it has not identified yet.

    listener  None on one node: nobody comes
    expected  how many nodes may well connect at the same time
    """

    def __init__(
        self, this_node: ThisNode, listener: socket.socket | None, *, say: Callable[[str], None], expected: int
    ) -> None:
        self._this_node = this_node
        self._listener = listener
        self.number = listener.getsockname()[1] if listener is not None else None
        self._say = say
        self._unknown: Strangers[LoopConnection] = Strangers(HELLO_S, most_strangers(expected))  # have not said hello
        self._refused: set[str] = set()  # hosts of which it was said
        self._deaf = False  # the listener is left alone for a moment, as no descriptor was left

    def open(
        self,
        loop: EventLoop,
        *,
        came: Callable[[Caller], None],
        ended: Callable[[LoopConnection], None],
        where: Callable[[], Message],
    ) -> None:
        """Begin to listen.

        came   one has said hello
        ended  the connection of one has, be it that of a stranger
        where  what is answered to whoever asks for the hub
        """
        self._loop, self._came, self._ended, self._where = loop, came, ended, where
        if self._listener is not None:
            self._listener.setblocking(False)
            self._watch(self._listener)

    def tick(self, now_s: float) -> None:
        """Close strangers whose time is up, and listen again where no descriptor was left."""
        if self._deaf and self._listener is not None:
            self._watch(self._listener)
        for connection in self._unknown.overdue(now_s):
            connection.close()

    def close(self) -> None:
        for connection in self._unknown:
            connection.close()
        if self._listener is not None:
            if not self._deaf:
                self._loop.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def meets(self, connection: LoopConnection, host: str) -> None:
        """Count this connection as a stranger's until it is known; it may crowd out another one."""
        if (crowded_out := self._unknown.came(connection, host, time.monotonic())) is not None:
            crowded_out.close()

    def knows(self, connection: LoopConnection) -> None:
        """Count it as a stranger's no more: it is known, or gone."""
        self._unknown.known(connection)

    def _watch(self, listener: socket.socket) -> None:
        self._deaf = False
        self._loop.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        """Accept those who wait, ACCEPTED_MAX at most; the others come with the next turn."""
        assert self._listener is not None
        for _ in range(ACCEPTED_MAX):
            try:
                sock, (host, *_) = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left: whoever waits makes each turn come at once, until the next tick
                self._loop.unregister(self._listener)
                self._deaf = True
                return
            self._accepted(sock, host)

    def _accepted(self, sock: socket.socket, host: str) -> None:
        """Hear a stranger: a hello makes it a caller, a question for the hub is answered, all else is refused."""
        try:
            transport = server_side(self._this_node.secret)
        except OSError:  # no descriptor is left
            sock.close()
            return
        keep_alive(sock)
        known: list[Callable[[Message], None]] = []
        said: list[Message] = []

        def heard(message: Message) -> None:
            if known:
                known[0](message)
                return
            said.append(message)
            if len(said) > 1:
                return  # it waits to hear whether we are the hub
            try:
                hello = self._introduced(message)
            except WireError as wrong:
                self.knows(connection)
                connection.say(as_message(Refusal(why=str(wrong))))
                connection.close()
                return
            if isinstance(hello, WhereIsTheHub):
                said.clear()  # it stays a stranger, whose time runs out, and may ask again until then
                connection.say(self._where())
                return
            self.knows(connection)
            self._came(Caller(hello, connection, known, said, time.monotonic()))

        def ended(_why: str | None) -> None:
            self.knows(connection)
            if transport.refused:
                self._tell_refused(host, transport.refused)
            self._ended(connection)

        connection = LoopConnection(self._loop, sock, heard, ended, transport)
        self.meets(connection, host)

    def _tell_refused(self, host: str, why: str) -> None:
        """Say to people, for the first REFUSALS_SHOWN hosts, why a process there is refused."""
        if host not in self._refused and len(self._refused) < REFUSALS_SHOWN:
            self._refused.add(host)
            last = "; of other hosts nothing more is said" if len(self._refused) == REFUSALS_SHOWN else ""
            self._say(
                f"a process on {host} is refused: {why}{last}\n"
                "  state  it is not let in, and the run goes on without it\n"
                f"  next   {SAME_FOR_ALL}"
            )

    def _introduced(self, message: Message) -> Hello | WhereIsTheHub:
        """Return a stranger's first message, if it is of this run. Raises WireError."""
        another = WireError("the agent here is of another run")
        try:
            hello = parse(TO_LISTENER, message)
        except WireError:
            raise another from None
        if not isinstance(hello, Hello | WhereIsTheHub) or not self._is_ours(hello.run):
            raise another
        if isinstance(hello, WhereIsTheHub):
            return hello
        if not hello.node or hello.node == self._this_node.node:
            raise WireError(f"a node that calls itself {hello.node!r} is here already")
        return hello

    def _is_ours(self, run: object) -> bool:
        return isinstance(run, str) and hmac.compare_digest(_bytes(run), _bytes(self._this_node.run))


def _bytes(text: str) -> bytes:
    """Return the bytes of any text that JSON may carry, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")

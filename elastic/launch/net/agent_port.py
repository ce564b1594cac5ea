"""The port on which an agent listens for the agents of other nodes, and who of those that come is of this run.

Any agent may come to be the hub, so each listens. Whoever connects is a stranger until it has said hello with what only
agents of this run know, and has a while for that; others are refused, and told why. Whoever asks where the hub is gets
an answer and stays a stranger. What becomes of one that has said hello is hub/link.py's.
"""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from elastic.launch.node_rules import ThisNode
from elastic.membership.messages.messages import TO_LISTENER, Hello, Refusal, WhereIsTheHub, as_message, parse
from elastic.membership.messages.wire import Message, WireError
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.event_loop import EventLoop
from elastic_checkpoint.net.port import Port
from elastic_checkpoint.net.secret import SAME_FOR_ALL
from elastic_checkpoint.net.transport import Transport

HELLO_S = 10.0  # for one that connects, to say who it is
REFUSALS_SHOWN = 10  # hosts; what strangers do fills no log


@dataclass(frozen=True)
class Caller:
    """Another node's agent, which says hello.

    heard  to be given what hears it from now on
    said   its hello, and what it has said since
    """

    hello: Hello
    connection: Connection
    heard: list[Callable[[Message], None]]
    said: list[Message]
    since_s: float


class AgentPort(Port):
    """Where this node's agent listens, None: nowhere, on one node; and who of those that come is of the run."""

    def __init__(
        self, this_node: ThisNode, listener: socket.socket | None, *, say: Callable[[str], None], expected: int
    ) -> None:
        """Keep what is needed; expected: how many nodes may well connect at the same time."""
        super().__init__(listener, secret=this_node.secret, patience_s=HELLO_S, expected=expected)
        self._this_node = this_node
        self._say = say
        self._refused: set[str] = set()  # hosts of which it was said

    def open(
        self,
        loop: EventLoop,
        *,
        came: Callable[[Caller], None],
        ended: Callable[[Connection], None],
        where: Callable[[], Message],
    ) -> None:
        """Begin to listen.

        came   one has said hello
        ended  the connection of one has, be it that of a stranger
        where  what is answered to whoever asks for the hub
        """
        self._came, self._ended, self._where = came, ended, where
        self.accept_in(loop, self._introduces)

    def _introduces(self, sock: socket.socket, host: str, transport: Transport) -> Connection:
        """Hear a stranger: a hello makes it a caller, a question for the hub is answered, all else is refused."""
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
                self.identified(connection)
                connection.say(as_message(Refusal(why=str(wrong))))
                connection.close()
                return
            if isinstance(hello, WhereIsTheHub):
                said.clear()  # it stays a stranger, whose time runs out, and may ask again until then
                connection.say(self._where())
                return
            self.identified(connection)
            self._came(Caller(hello, connection, known, said, time.monotonic()))

        def ended(_why: str | None) -> None:
            self.identified(connection)
            if connection.refused:
                self._tell_refused(host, connection.refused)
            self._ended(connection)

        connection = Connection(self.loop, sock, heard, ended, transport)
        return connection

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

"""A node's way to the run's hub, wherever that is: in this process, in another node's, or being looked for.

    serves   the hub is here, and looks for another one where it may not go on        server.py, step_down.py
    joins    it is elsewhere, over TCP; a silent lease ends that, too                 client.py
    seeks    it was lost: the next of the roster is asked, and the next, until one
             of them is the hub. Whose turn comes before anybody has answered is
             the hub: it learns of the run from those who come to it                  roster_search.py

Every agent listens, for any may come to be the hub (net/agent_port.py). An agent that is not says where it is, or lets
those who come wait until it knows. What the workers of a node say meanwhile is kept in the node's
report, and said to the next hub with its hello (node_report.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from elastic.launch.hub import rules
from elastic.launch.hub.announcement import HubAnnouncement
from elastic.launch.hub.client import HubClient
from elastic.launch.hub.roster_search import RosterSearch
from elastic.launch.hub.rules import HELD_UP_S, JoinWait
from elastic.launch.hub.server import Deliver, HubServer
from elastic.launch.hub.step_down import OtherHubSearch
from elastic.launch.hub.written_lookup import BackgroundLookup
from elastic.launch.net.agent_port import AgentPort, Caller
from elastic.launch.node_rules import ThisNode
from elastic.membership.exit_statuses import AGAIN
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.known_lists import KnownLists, ListUnknown
from elastic.membership.messages.messages import (
    TO_AGENT,
    TO_HUB,
    TO_WORKER,
    Bye,
    Full,
    Handover,
    Hello,
    HubIs,
    InFull,
    MovedOn,
    Noted,
    Ping,
    Refusal,
    Roster,
    RunIsOver,
    TakeNote,
    as_message,
    parse,
)
from elastic.membership.messages.wire import LONG_LINE_MAX, Message, WireError
from elastic.membership.succession.node_report import NodeReport
from elastic.version import __version__
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.dialing import Address, Dials, other_end
from elastic_checkpoint.net.event_loop import EventLoop
from elastic_checkpoint.net.transport import client_side


class HubLink:
    """A node's one way to the hub, wherever that is.

    make_hub  a hub of this node's; takes_over: from another one
    listener  for other nodes' agents; None on one node
    connected to the hub elsewhere, by whom the rendezvous found it; None: the hub is here, or lost
    met       who met before there was a hub, in the order in which they become it; none: that is not known here
    join_s    how long to wait for a place in a run that has its most nodes
    expected  how many nodes may well connect at the same time
    find_hub  asks those who know of the run where its hub is, which may take seconds; None: there is nobody to ask
    announcement  of the hub, while it is here; None: nobody would look
    """

    def __init__(
        self,
        this_node: ThisNode,
        make_hub: Callable[[bool], Hub],
        *,
        say: Callable[[str], None],
        listener: socket.socket | None = None,
        connected: socket.socket | None = None,
        met: Sequence[tuple[str, Address]] = (),
        join_s: float = 0.0,
        expected: int = 0,
        find_hub: Callable[[], socket.socket | None] | None = None,
        announcement: HubAnnouncement | None = None,
    ) -> None:
        self._join_s = join_s
        self._announcement = announcement
        self._wait: JoinWait | None = None
        self._this_node = this_node
        self._make_hub = make_hub
        self._say = say
        self._port = AgentPort(this_node, listener, say=say, expected=expected)
        self._connected = connected
        self._met = tuple(met)  # until there is a view
        self._report = NodeReport()
        self._lists = KnownLists()
        self._parsed: tuple[Message | None, Any] = None, None  # the last order, which may be for several workers
        self._first = True  # nothing is known of the run yet
        self._own = this_node.address or "", self._port.number or 0  # where others find this agent
        search = partial(BackgroundLookup, find_hub) if find_hub is not None else None
        self._seeker: RosterSearch[socket.socket] = RosterSearch(this_node.node, self._own, search)
        self._other_search = OtherHubSearch(this_node, self._port, self._own, self._steps_down)
        self._serving: HubServer | None = None
        self._client: HubClient | None = None
        self._ticked_s = 0.0
        self._callers: list[Caller] = []  # which have lost the hub before we have
        self._run_ended = False
        self._run_is_over = False  # the hub has said so
        self._may_go_on_elsewhere = False  # as it did, with those who were missing then
        self._handed_over_s: float | None = None

    def open(
        self,
        loop: EventLoop,
        deliver: Deliver,
        *,
        gone: Callable[[str], None],
        moved_on: Callable[[str], None],
        waits: Callable[[str], None],
        not_admitted: Callable[[str], None],
        slots: Callable[[], tuple[int, list[int]]],
        catch_up: Callable[[], None],
    ) -> None:
        """Begin to serve, to join or to seek.

        gone      why no hub can be found
        moved_on  why this node's workers are of no use any more
        waits     why they are of no use yet: the run has its most nodes, and a place is waited for
        not_admitted  why that was given up
        slots     how many workers it has, 0 if it leaves; and which of them, by local rank, are being started
        catch_up  tells what its workers have said, and nobody has heard yet
        """
        self._slots, self._catch_up = slots, catch_up
        self._on_wait, self._on_not_admitted = waits, not_admitted
        self._loop, self._to_node, self._gone, self._on_moved_on = loop, deliver, gone, moved_on
        self._port.open(loop, came=self._came, ended=self._ended, where=self._where)
        self._other_search.open(loop)
        self._seeker.open(Dials(loop), reached=self._reached, serve=self._takes_over, in_vain=self._found_nobody)
        if self._met:
            self._seeker.have_met(self._met)
        if self._connected is not None:
            self._seeker.found(self._connected)
        elif not self._met or self._met[0][0] == self._this_node.node:
            self._serve(takes_over=False)
        else:
            self._seeker.begin()

    def tell(self, message: Message) -> None:
        """Tell the hub, and keep what was said in the node's report for the next hub."""
        self._report.note_said(parse(TO_HUB, message), time.monotonic())
        if self._serving is not None:
            self._serving.hear(self._this_node.node, message)
        elif self._client is not None:
            self._client.connection.say(message)

    def others(self) -> list[str]:
        """Return the other nodes that need this process."""
        return self._serving.others if self._serving is not None else []

    def say_bye_or_hand_over(self, now_s: float) -> None:
        """Tell the hub, once, that this node's workers have left and none will come; a hub that is here hands over."""
        if self._client is not None and not self._run_ended:
            self._run_ended = True
            self._client.connection.say(as_message(Bye()))
        if self._serving is not None and self._serving.others and self._handed_over_s is None:
            self._run_ended, self._handed_over_s = True, now_s
            if self._announcement is not None:
                self._announcement.end()
            self._serving.hands_over()

    @property
    def is_needed(self) -> bool:
        """Return whether others need the hub here: until they have gone to the next one, or take too long for that."""
        if self._serving is None or not self._serving.others:
            return False
        return self._handed_over_s is None or time.monotonic() - self._handed_over_s <= rules.HANDED_OVER_S

    def settle(self) -> None:
        """Decide what follows, if the hub is here, when all that has arrived is told."""
        if self._serving is not None:
            self._serving.settle()

    def tick(self, now_s: float) -> None:
        """Do what is due with whichever hub there is: serve, ping, wait for a place, or seek."""
        held_up = now_s - self._ticked_s > HELD_UP_S
        self._ticked_s = now_s
        self._port.tick(now_s)
        if self._wait is not None and not self._run_ended:
            self._wait_to_join(now_s, self._wait)
        if self._serving is not None:
            self._serving.tick(now_s)
            if self._serving is not None:  # it may have been moved on from
                self._other_search.look(now_s, self._serving.missing)
        elif self._client is not None:
            self._watch(now_s, self._client, held_up=held_up)
        else:
            self._seeker.tick(now_s)
        if self._client is None:
            self._seeker.look()

    def close(self) -> None:
        """Close all connections, and withdraw or end the announcement."""
        self._run_ended = True
        self._seeker.close()
        self._other_search.stop()
        for caller in self._callers:
            caller.connection.close()
        if self._announcement is not None:
            self._withdraw_or_end(self._announcement)
        if self._serving is not None:
            self._serving.close()
        if self._client is not None:
            self._client.connection.close()
        self._port.close()

    def _withdraw_or_end(self, announcement: HubAnnouncement) -> None:
        """Withdraw the announcement of a hub that is here, if the run is over or has no other node; else end it."""
        if self._serving is None or not (self._run_is_over or not self._serving.others):
            announcement.end()
            return
        missing = self._may_go_on_elsewhere if self._run_is_over else bool(self._serving.hub.missing())
        announcement.withdraw(everywhere=not missing and self._handed_over_s is None)

    # hearing the hub

    def _deliver(self, worker: str | None, message: Message) -> None:
        """Act on an order of whichever hub, or pass it on to this node."""
        if self._parsed[0] is not message:
            self._parsed = message, parse(TO_AGENT if worker is None else TO_WORKER, message)
        said = self._parsed[1]
        self._report.note_ordered(worker, said)
        match said:
            case Ping():
                pass
            case Full():
                self._is_full(said)
            case InFull():
                if self._client is not None:
                    self._client.connection.say(self._hello(in_full=True))
            case Roster(nodes=nodes, generation=generation):
                self._wait = None
                self._met = () if generation else self._met
                self._seeker.welcomed([(name, (address, port)) for name, address, port in nodes])
                if self._client is not None:
                    self._client.welcomed(self._seeker.roster)
            case TakeNote(number=number):
                self.tell(as_message(Noted(number=number)))
            case Handover():
                if self._client is not None:
                    self._seek(departed=True)
            case HubIs(address=address, port=port):
                self._sent_elsewhere(address, port)
            case MovedOn(why=why):
                self._moved_on(why)
            case Refusal(why=why):
                self._is_refused(why)
            case _:
                if isinstance(said, RunIsOver) and not self._run_is_over:
                    self._run_is_over = self._run_ended = True  # and others end from now on, so that they are missing
                    self._may_go_on_elsewhere = self._serving is not None and bool(self._serving.hub.missing())
                self._to_node(worker, message)

    def _reached(self, name: str | None, address: Address | None, sock: socket.socket) -> None:
        """Join the hub at the other end, unless the connection is lost already."""
        at = address or other_end(sock)
        if at is None:  # it is lost already
            self._seeker.begin(pause=True)
        else:
            self._join(name or next((one for one, where in self._met if where == at), None), at, sock)

    def _join(self, name: str | None, address: Address, sock: socket.socket) -> None:
        """Say hello on this connection, and take whoever is there for the hub until it says otherwise."""

        def heard(message: Message) -> None:
            client.heard()
            to = message.pop("to", None)
            try:
                message = self._lists.unpack(message)
                for worker in to if isinstance(to, list) else [to]:
                    self._deliver(worker if isinstance(worker, str) else None, message)
            except ListUnknown as wrong:
                self._lists = KnownLists()  # the next hello names none
                self._lost_hub(str(wrong))
            except WireError as wrong:
                self._say(f"a message of the hub is dropped: {wrong}")

        def ended(why: str | None) -> None:
            if self._client is client:
                self._lost_hub(why or "it ended")

        hello = self._hello()  # with what the workers have said until now: nothing of theirs may come before it
        transport = client_side(self._this_node.secret)
        client = HubClient(name, address)
        client.connection = Connection(self._loop, sock, heard, ended, transport)
        client.connection.takes_long_lines(LONG_LINE_MAX)
        self._client = client
        client.connection.say(hello)
        self._answer_callers()

    def _hello(self, *, in_full: bool = False) -> Message:
        """Return the hello with this node's report; in_full: to a hub that is here, or lacks this node's lists."""
        this_node = self._this_node
        self._catch_up()
        report = None if self._first else self._report.document(time.monotonic())
        if report is not None and not in_full:
            report = self._lists.pack_report(report)
        self._first = False
        slots, starting = self._slots()
        return as_message(
            Hello(
                node=this_node.node,
                address=this_node.address,
                port=self._port.number,
                group_port=this_node.group_port,
                slots=slots,
                replica_size=this_node.replica_size,
                starting=starting,
                run=this_node.run,
                report=report,
                knows=[] if in_full else self._lists.hashes(),
            )
        )

    def _watch(self, now_s: float, hub: HubClient, *, held_up: bool) -> None:
        """Ping the hub, and go on without it if it is silent for too long."""
        hub.ping_if_due(now_s, held_up=held_up)
        silent_s = hub.lost_for_s(now_s)
        if self._client is hub and silent_s is not None:
            self._lost_hub(f"nothing was heard of it for {silent_s:.1f} s")
        elif any(now_s - caller.since_s > rules.CALLER_S for caller in self._callers):
            self._answer_callers()

    def _lost_hub(self, why: str) -> None:
        """Say that the connection to the hub is lost, and seek the next one."""
        if not self._run_ended:
            count = len(self._seeker.candidates())
            follows = f"the next of {count} nodes is asked" if count else "it is looked for where this node found it"
            self._say(f"the connection to the run's hub is lost: {why}; {follows}")
        self._seek(departed=False)

    def _sent_elsewhere(self, address: str | None, port: int) -> None:
        """Go where an agent that is not the hub says that it is."""
        assert self._client is not None
        at = self._client.address
        self._end_client()
        if address is not None and (address, port) != at:
            self._seeker.begin_at((address, port))
        else:
            self._seeker.begin(pause=address is None)

    def _is_refused(self, why: str) -> None:
        """Forget that address, where another job's agent is by now, and seek on."""
        assert self._client is not None
        wrong = self._client.address
        self._seeker.is_none(wrong)
        if not self._run_ended:
            self._say(f"the agent at {wrong[0]}:{wrong[1]} is none of this run, and is not asked any more: {why}")
        self._seek(departed=False)

    def _moved_on(self, why: str) -> None:
        """Have the workers end, whose state is of no use since the run went on without them; seek a way back in."""
        self._report, self._seeker.newcomer = self._report.without_workers(), True
        if self._serving is not None:
            self._serves_no_more(self._serving, None)
        self._end_client()
        self._on_moved_on(why)
        self._seeker.lost = {}
        self._seeker.begin(pause=True)

    # waiting for a place

    def _is_full(self, said: Full) -> None:
        """Wait for a place in the run. This node's workers, in no view yet, hold nothing; others are ordered then."""
        nodes = [(name, (address, port)) for name, address, port in said.nodes]
        self._seeker.is_full(nodes)
        self._met = ()
        if self._client is not None:
            self._client.welcomed(nodes)
        if self._wait is None:
            self._wait = JoinWait(time.monotonic(), self._join_s)
            self._report = self._report.without_workers()
            wait = f"this node waits for a place, {self._join_s:.0f} s at most (--rdzv-conf join_timeout)"
            self._on_wait(f"the run has its {said.nodes_max} nodes already: {wait}")

    def _wait_to_join(self, now_s: float, wait: JoinWait) -> None:
        """Ask again for a place, or give up once the wait is over."""
        if wait.is_over(now_s):
            self._wait, self._run_ended = None, True
            self._on_not_admitted(
                f"no place in the run came free within {wait.within_s:.0f} s\n"
                "  state  nothing was started here, and the run goes on without this node\n"
                f"  next   try again later (exit status {AGAIN}), allow more nodes with --nnodes=MIN:MAX, or wait "
                "longer with --rdzv-conf join_timeout=SECONDS"
            )
        elif self._client is not None and wait.is_due(now_s):
            self._client.connection.say(self._hello())

    # seeking

    def _seek(self, *, departed: bool) -> None:
        """Seek another hub, as the one that it was with is lost or, with `departed`, leaves."""
        assert self._client is not None
        name = self._client.name
        # Before the first view nobody knows of those who do not answer yet: they are given up where nobody is there.
        is_lost = departed or self._client.welcome or not self._met
        self._end_client()
        if self._run_ended:
            return
        if name is not None and is_lost:
            self._seeker.lost[name] = departed
        self._seeker.begin()

    def _found_nobody(self, why: str) -> None:
        """Give up: a newcomer is not admitted, a node of the run is without a hub."""
        self._run_ended = self._seeker.newcomer
        if not self._seeker.newcomer:
            self._gone(why)
            return
        self._on_not_admitted(
            f"{why}\n"
            "  state  no worker is left here; what the run has saved is whole\n"
            f"  next   start it again (exit status {AGAIN}): it joins the run, or goes on from what is saved"
        )

    def _end_client(self) -> None:
        if self._client is not None:
            self._client.connection.close()
            self._client = None

    # serving

    def _takes_over(self) -> None:
        self._serve(takes_over=True)

    def _serve(self, *, takes_over: bool) -> None:
        """Be the run's hub; takes_over: after another one."""
        this_node, lost = self._this_node, self._seeker.lost
        self._seeker.stop()
        hub = self._make_hub(takes_over)
        hub.have_met([[name, *where] for name, where in self._met])
        self._serving = HubServer(hub, this_node.node, self._loop, self._lists, deliver=self._deliver, say=self._say)
        self._serving.knows(self._seeker.met.items())
        if self._announcement is not None:
            self._announcement.begin(first=bool(self._met) or not takes_over)
        now_s = time.monotonic()
        if takes_over:
            before = ", ".join(f"{node}, which leaves" if departed else node for node, departed in lost.items())
            self._say(f"this node is the run's hub now, after {before or 'one that could not be reached'}")
            self._other_search.wait(now_s)
            hub.expect(name for name, _ in self._seeker.roster)
            for node, departed in lost.items():
                hub.without(now_s, node, departed=departed)
        self._serving.hear(this_node.node, self._hello(in_full=True))
        self._answer_callers()
        if takes_over and self._serving is not None:
            self._serving.invites()
        self._seeker.lost = {}

    def _serves_no_more(self, serving: HubServer, to: Address | None) -> None:
        """Tell the other nodes where the hub is now, if anywhere, and stop serving."""
        if self._announcement is not None:
            self._announcement.end()
        serving.steps_down(to)
        self._serving = None
        self._other_search.stop()

    def _steps_down(self, to: Address) -> None:
        """Go to the other hub, if this node's may still not go on."""
        if self._serving is None or not self._serving.missing():
            return
        self._say(f"the run's hub is at {to[0]}:{to[1]}; this node goes there")
        self._serves_no_more(self._serving, to)
        self._seeker.begin_at(to, then=self._seeker.candidates())

    # others' agents

    def _ended(self, connection: Connection) -> None:
        """Let go of another agent's connection, which has ended."""
        self._callers = [caller for caller in self._callers if caller.connection is not connection]
        if self._serving is not None:
            self._serving.ended(connection)

    def _came(self, caller: Caller) -> None:
        """Serve a caller if the hub is here; else let it wait, and after CALLER_S tell it where the hub is."""
        hello, connection = caller.hello, caller.connection
        connection.takes_long_lines(LONG_LINE_MAX)
        if self._serving is not None:
            caller.heard.append(self._serving.takes(hello.node, hello, connection))
            for message in caller.said[1:]:
                caller.heard[0](message)
        elif self._client is not None and time.monotonic() - caller.since_s > rules.CALLER_S:
            connection.say(self._where((hello.address, hello.port)))
        else:
            self._callers.append(caller)  # until we are the hub, or know where it is

    def _answer_callers(self) -> None:
        callers, self._callers = self._callers, []
        for caller in callers:
            self._came(caller)

    def _where(self, asks: tuple[str | None, int | None] = (None, None)) -> Message:
        """Return the answer to whoever asks for the hub, and listens at `asks`."""
        hub = self._client
        if self._serving is not None:
            where = rules.answer_of_the_hub(self._own, missing=bool(self._serving.missing()))
        elif hub is not None:
            where = hub.where(asks)
        else:
            where = HubIs()
        return {"to": None, **as_message(structs.replace(where, version=__version__))}

"""A node's way to the run's hub, wherever that is: in this process, in another node's, or being looked for.

    serves   the hub is here                                        hub_here.py
    attends  it is elsewhere, over TCP; a silent lease ends that, too
    seeks    it was lost: the next of the roster is asked, and the next, until one of them is the hub. Whose turn comes
             before anybody has answered is the hub: it learns of the run from those who come to it

Every agent listens, for any may come to be the hub. Whoever connects says hello with what only agents of this run
know; an agent that is not the hub says where it is. What the workers of a node say meanwhile is kept in the node's
report, and said to the next hub with its hello (node_report.py).
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from checkpoint.net.keepalive import keep_alive
from checkpoint.net.secured import client_side, server_side
from checkpoint.net.strangers import Strangers, most_strangers
from checkpoint.net.transport import SAME_FOR_ALL
from elastic.launch import hub_seeking
from elastic.launch.dialing import Address, Dial
from elastic.launch.hub_here import PING_S, Deliver, HubHere
from elastic.launch.hub_lookup import HubSearch
from elastic.launch.hub_seeking import Candidate, Turn
from elastic.launch.lease import HELD_UP_S, Lease
from elastic.launch.loop_connection import LoopConnection
from elastic.launch.place_wait import PlaceWait
from elastic.membership.hub import Hub
from elastic.membership.known_lists import KnownLists, ListUnknown
from elastic.membership.messages import (
    TO_AGENT,
    TO_HUB,
    TO_LISTENER,
    TO_WORKER,
    Bye,
    Full,
    Handover,
    Hello,
    HubIs,
    InFull,
    MovedOn,
    Ping,
    Refusal,
    Roster,
    RunIsOver,
    WhereIsTheHub,
    as_message,
    parse,
)
from elastic.membership.node_report import NodeReport
from elastic.membership.wire import Message, WireError

_HELLO_S = 10.0  # for one that connects, to say who it is
_MET_MAX = 1024
_SEEK_S = 600.0
_REFUSALS_SHOWN = 10  # hosts; what strangers do fills no log
ACCEPTED_MAX = 64  # in one turn: of thousands that come at a takeover, who is here already is heard between them


@dataclass(frozen=True, kw_only=True)
class ThisNode:
    """Of this node.

    node     its name
    address  under which others find it
    run      what agents of this run know
    secret   what only they know, for TLS between them; None: what they say goes in the clear
    """

    node: str
    address: str | None
    run: str
    secret: str | None = field(default=None, repr=False)


class Attendance:
    """A connection to the hub elsewhere."""

    def __init__(self, name: str | None, address: Address, connection: LoopConnection) -> None:
        self.name = name
        self.address = address
        self.connection = connection
        self.pinged_s = time.monotonic()
        self.lease = Lease(self.pinged_s)
        self.welcome = False

    def welcomed(self, roster: list[tuple[str, Address]]) -> None:
        self.welcome = True
        self.name = next((name for name, at in roster if at == self.address), self.name)


@dataclass(frozen=True)
class _Caller:
    """Another node's agent, which has lost the hub before we have.

    heard  to be given what hears it from now on
    said   its hello, and what it has said since
    """

    hello: Hello
    connection: LoopConnection
    heard: list[Callable[[Message], None]]
    said: list[Message]
    since_s: float


class HubLink:
    """
    make_hub  a hub of this node's; takes_over: from another one
    listener  for other nodes' agents; None on one node
    connected to the hub elsewhere, by whom the rendezvous found it; None: the hub is here
    join_s    how long to wait for a place in a run that has its most nodes
    expected  how many nodes may well connect at the same time
    find_hub  asks those who know of the run where its hub is, which may take seconds; None: there is nobody to ask
    """

    def __init__(
        self,
        place: ThisNode,
        make_hub: Callable[[bool], Hub],
        *,
        say: Callable[[str], None],
        listener: socket.socket | None = None,
        connected: socket.socket | None = None,
        join_s: float = 0.0,
        expected: int = 0,
        find_hub: Callable[[], socket.socket | None] | None = None,
    ) -> None:
        self._find_hub = find_hub
        self._search: HubSearch | None = None
        self._join_s = join_s
        self._wait: PlaceWait | None = None
        self._place = place
        self._make_hub = make_hub
        self._say = say
        self._listener = listener
        self._port = listener.getsockname()[1] if listener is not None else None
        self._connected = connected
        self._report = NodeReport()
        self._lists = KnownLists()
        self._parsed: tuple[Message | None, Any] = None, None  # the last order, which may be for several workers
        self._newcomer = self._first = True  # not in the run yet, or not any more
        self._roster: list[tuple[str, Address]] = []
        self._met: dict[str, Address] = {}  # all nodes that a roster ever named
        self._serving: HubHere | None = None
        self._attending: Attendance | None = None
        self._seeking: list[Candidate] | None = None  # who is to be asked yet
        self._seeks_since_s: float | None = None
        self._next_s = self._met_s = self._ticked_s = 0.0
        self._lost: dict[str, bool] = {}  # nodes that are no candidates, and whether they said that they go
        self._dials: list[Dial] = []
        self._callers: list[_Caller] = []
        self._unknown: Strangers[LoopConnection] = Strangers(_HELLO_S, most_strangers(expected))  # have not said hello
        self._refused: set[str] = set()  # hosts of which it was said
        self._run_ended = False
        self._handed_over_s: float | None = None
        self._deaf = False  # the listener is left alone for a moment, as no descriptor was left

    def open(
        self,
        loop: selectors.BaseSelector,
        deliver: Deliver,
        *,
        gone: Callable[[str], None],
        moved_on: Callable[[str], None],
        waits: Callable[[str], None],
        no_place: Callable[[str], None],
        places: Callable[[], tuple[int, list[int]]],
        catch_up: Callable[[], None],
    ) -> None:
        """Begins.

        gone      why no hub can be found
        moved_on  why this node's workers are of no use any more
        waits     why they are of no use yet: the run has its most nodes, and a place is waited for
        no_place  why that was given up
        places    how many workers it has, 0 if it leaves; and which of them, by local rank, are being started
        catch_up  tells what its workers have said, and nobody has heard yet
        """
        self._places, self._catch_up = places, catch_up
        self._on_wait, self._on_no_place = waits, no_place
        self._loop, self._to_node, self._gone, self._on_moved_on = loop, deliver, gone, moved_on
        if self._listener is not None:
            self._listener.setblocking(False)
            self._watch_port(self._listener)
        if self._connected is None:
            self._serve(takes_over=False)
        else:
            self._attend_found(self._connected)

    def tell(self, message: Message) -> None:
        self._report.note_said(parse(TO_HUB, message), time.monotonic())
        if self._serving is not None:
            self._serving.hear(self._place.node, message)
        elif self._attending is not None:
            self._attending.connection.say(message)

    def others(self) -> list[str]:
        """The other nodes that need this process."""
        return self._serving.others if self._serving is not None else []

    def say_bye_or_hand_over(self, now_s: float) -> None:
        """The workers of this node have left, and none will come: the hub hears of it, or goes elsewhere. Once."""
        if self._attending is not None and not self._run_ended:
            self._run_ended = True
            self._attending.connection.say(as_message(Bye()))
        if self._serving is not None and self._serving.others and self._handed_over_s is None:
            self._run_ended, self._handed_over_s = True, now_s
            self._serving.hands_over()

    @property
    def is_needed(self) -> bool:
        """By others whose hub is here, until they have gone to the next one; or too long."""
        if self._serving is None or not self._serving.others:
            return False
        return self._handed_over_s is None or time.monotonic() - self._handed_over_s <= hub_seeking.HANDED_OVER_S

    def settle(self) -> None:
        """Called when all that has arrived is told."""
        if self._serving is not None:
            self._serving.settle()

    def tick(self, now_s: float) -> None:
        held_up = now_s - self._ticked_s > HELD_UP_S
        self._ticked_s = now_s
        if self._deaf and self._listener is not None:
            self._watch_port(self._listener)
        for connection in self._unknown.overdue(now_s):
            connection.close()
        if self._wait is not None and not self._run_ended:
            self._wait_for_place(now_s, self._wait)
        if self._serving is not None:
            self._serving.tick(now_s)
            self._look_for_another(now_s)
        elif self._attending is not None:
            self._watch(now_s, self._attending, held_up=held_up)
        elif self._seeking is not None and now_s >= self._next_s:
            self._ask_next(now_s)
        if self._search is not None and self._attending is None and (found := self._search.take()) is not None:
            self._end_search()
            self._attend_found(found)

    def close(self) -> None:
        self._run_ended = True
        self._end_search()
        for dial in self._dials:
            dial.close()
        for connection in (*self._unknown, *(caller.connection for caller in self._callers)):
            connection.close()
        if self._serving is not None:
            self._serving.close()
        if self._attending is not None:
            self._attending.connection.close()
        if self._listener is not None:
            if not self._deaf:
                self._loop.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # hearing the hub

    def _deliver(self, worker: str | None, message: Message) -> None:
        """To this node, from whichever hub."""
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
                if self._attending is not None:
                    self._attending.connection.say(self._hello(in_full=True))
            case Roster(nodes=nodes):
                self._wait = None
                self._newcomer, self._seeking, self._lost, self._seeks_since_s = False, None, {}, None
                self._end_search()
                self._roster = [(name, (address, port)) for name, address, port in nodes]
                self._met = dict([*self._met.items(), *self._roster][-_MET_MAX:])
                if self._attending is not None:
                    self._attending.welcomed(self._roster)
            case Handover():
                if self._attending is not None:
                    self._seek(left=True)
            case HubIs(address=address, port=port):
                self._sent_elsewhere(address, port)
            case MovedOn(why=why):
                self._moved_on(why)
            case Refusal(why=why):
                self._is_refused(why)
            case _:
                self._run_ended |= isinstance(said, RunIsOver)
                self._to_node(worker, message)

    def _attend(self, name: str | None, address: Address, sock: socket.socket) -> None:
        def heard(message: Message) -> None:
            attendance.lease.heard(time.monotonic())
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
            if self._attending is attendance:
                self._lost_hub(why or "it ended")

        hello = self._hello()  # with what the workers have said until now: nothing of theirs may come before it
        transport = client_side(self._place.secret)
        attendance = Attendance(name, address, LoopConnection(self._loop, sock, heard, ended, transport))
        attendance.connection.takes_long_lines()
        self._attending, self._seeking = attendance, None
        attendance.connection.say(hello)
        self._answer_callers()

    def _hello(self, *, in_full: bool = False) -> Message:
        """in_full: for a hub that is here, or that has not the lists that this node has"""
        place = self._place
        self._catch_up()
        report = None if self._first else self._report.document(time.monotonic())
        if report is not None and not in_full:
            report = self._lists.pack_report(report)
        self._first = False
        places, starting = self._places()
        return as_message(
            Hello(
                node=place.node,
                address=place.address,
                port=self._port,
                places=places,
                starting=starting,
                run=place.run,
                report=report,
                knows=[] if in_full else self._lists.hashes(),
            )
        )

    def _watch(self, now_s: float, hub: Attendance, *, held_up: bool) -> None:
        if held_up:
            hub.lease.held_up(now_s)
        if now_s - hub.pinged_s >= PING_S:
            hub.pinged_s = now_s
            hub.connection.say(as_message(Ping()))
        silent_s = hub.lease.silent_s(now_s)
        if self._attending is hub and hub_seeking.is_lost(silent_s, welcome=hub.welcome):
            self._lost_hub(f"nothing was heard of it for {silent_s:.1f} s")
        elif any(now_s - caller.since_s > hub_seeking.CALLER_S for caller in self._callers):
            self._answer_callers()

    def _lost_hub(self, why: str) -> None:
        if not self._run_ended:
            count = len(self._candidates())
            follows = f"the next of {count} nodes is asked" if count else "it is looked for where this node found it"
            self._say(f"the connection to the run's hub is lost: {why}; {follows}")
        self._seek(left=False)

    def _sent_elsewhere(self, address: str | None, port: int) -> None:
        """By an agent that is not the hub."""
        assert self._attending is not None
        at = self._attending.address
        self._end_attendance()
        if address is not None and (address, port) != at:
            self._seeking = [(None, (address, port)), *(self._seeking or [])]
        self._begin_seeking(pause=address is None)

    def _is_refused(self, why: str) -> None:
        """Another job's agent has that address by now: nobody of this run is to be found there."""
        assert self._attending is not None
        wrong = self._attending.address
        self._roster = [(name, at) for name, at in self._roster if at != wrong]
        self._met = {name: at for name, at in self._met.items() if at != wrong}
        if not self._run_ended:
            self._say(f"the agent at {wrong[0]}:{wrong[1]} is none of this run, and is not asked any more: {why}")
        self._seek(left=False)

    def _moved_on(self, why: str) -> None:
        """The run has gone on without this node: what its workers hold is of no use, and they end."""
        self._report, self._newcomer = self._report.without_workers(), True
        if self._serving is not None:
            self._serving.steps_down(None)
            self._serving = None
        self._end_attendance()
        self._on_moved_on(why)
        self._lost = {}
        self._begin_seeking(pause=True)

    # waiting for a place

    def _is_full(self, said: Full) -> None:
        """This node's workers hold nothing, for they are in no view: others are ordered once there is a place."""
        nodes = [(name, (address, port)) for name, address, port in said.nodes]
        self._met |= dict(nodes)
        self._newcomer, self._seeking, self._seeks_since_s = True, None, None
        if self._attending is not None:
            self._attending.welcomed(nodes)
        if self._wait is None:
            self._wait = PlaceWait(time.monotonic(), self._join_s)
            self._report = self._report.without_workers()
            wait = f"this node waits for a place, {self._join_s:.0f} s at most (--rdzv-conf join_timeout)"
            self._on_wait(f"the run has its {said.nodes_max} nodes already: {wait}")

    def _wait_for_place(self, now_s: float, wait: PlaceWait) -> None:
        if wait.is_over(now_s):
            self._wait, self._run_ended = None, True
            self._on_no_place(f"no place in the run came free within {wait.within_s:.0f} s")
        elif self._attending is not None and wait.is_due(now_s):
            self._attending.connection.say(self._hello())

    # seeking

    def _seek(self, *, left: bool) -> None:
        """The hub that was attended is lost, or goes."""
        assert self._attending is not None
        name = self._attending.name
        self._end_attendance()
        if self._run_ended:
            return
        if name is not None:
            self._lost[name] = left
        self._begin_seeking()

    def _begin_seeking(self, *, pause: bool = False) -> None:
        now_s = time.monotonic()
        if self._seeks_since_s is None:
            self._seeks_since_s = now_s
        if self._seeking is None:
            self._seeking = self._candidates()
        if self._newcomer and self._search is None and self._find_hub is not None:
            self._search = HubSearch(self._find_hub)  # whom it knows may all be gone, and the run goes on with others
        self._next_s = now_s + (hub_seeking.PAUSE_S if pause else 0.0)
        if not pause:
            self._ask_next(now_s)

    def _attend_found(self, sock: socket.socket) -> None:
        for dial in self._dials:
            dial.close()
        self._dials = []
        try:
            keep_alive(sock)
            host, port = sock.getpeername()[:2]
        except OSError:  # it is lost already
            sock.close()
            self._begin_seeking(pause=True)
            return
        self._attend(None, (host, port), sock)

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.end()
            self._search = None

    def _candidates(self) -> list[Candidate]:
        return hub_seeking.candidates(self._roster, self._met, self._lost)

    def _ask_next(self, now_s: float) -> None:
        assert self._seeking is not None
        for dial in self._dials:
            dial.close()
        self._dials = []
        if self._seeks_since_s is not None and now_s - self._seeks_since_s > _SEEK_S:
            self._seeking, self._run_ended = None, self._newcomer
            self._end_search()
            (self._on_no_place if self._newcomer else self._gone)(f"no hub was found within {_SEEK_S:.0f} s")
        elif not self._seeking:
            self._lost = {}  # they may be back
            self._seeking = self._candidates()
            self._next_s = now_s + hub_seeking.PAUSE_S
        else:
            name, address = candidate = self._seeking.pop(0)
            match hub_seeking.turn(candidate, node=self._place.node, own=self._own, newcomer=self._newcomer):
                case Turn.ASK:
                    self._ask(name, address, now_s)
                case Turn.SERVE:
                    self._serve(takes_over=True)

    def _ask(self, name: str | None, address: Address, now_s: float) -> None:
        self._next_s = now_s + hub_seeking.TRY_S

        def done(sock: socket.socket | None) -> None:
            self._dials.remove(dial)
            if sock is not None:
                seeking = self._seeking
                self._attend(name, address, sock)
                self._seeking = seeking
            else:
                self._failed(name)
                self._next_s = 0.0

        dial = Dial(self._loop, address, done)
        self._dials.append(dial)

    def _failed(self, name: str | None) -> None:
        if name is not None:
            self._lost.setdefault(name, False)

    def _end_attendance(self) -> None:
        if self._attending is not None:
            self._attending.connection.close()
            self._attending = None

    # serving

    def _serve(self, *, takes_over: bool) -> None:
        place = self._place
        self._seeking = None
        hub = self._make_hub(takes_over)
        self._serving = HubHere(hub, place.node, self._loop, self._lists, deliver=self._deliver, say=self._say)
        self._serving.knows(self._met.items())
        now_s = time.monotonic()
        if takes_over:
            before = ", ".join(f"{node}, which leaves" if left else node for node, left in self._lost.items())
            self._say(f"this node is the run's hub now, after {before or 'one that could not be reached'}")
            self._met_s = now_s
            hub.expect(name for name, _ in self._roster)
            for node, left in self._lost.items():
                hub.without(now_s, node, left=left)
        self._serving.hear(place.node, self._hello(in_full=True))
        self._answer_callers()
        if takes_over and self._serving is not None:
            self._serving.invites()
        self._lost = {}

    def _look_for_another(self, now_s: float) -> None:
        """While this side may not go on: those who are missing may have a hub, and this one steps down for it."""
        assert self._serving is not None
        if now_s - self._met_s < hub_seeking.MEET_S:
            return
        self._met_s = now_s
        for dial in self._dials:
            dial.close()
        self._dials = []
        for address in self._serving.missing():
            self._ask_for_hub(address)

    def _ask_for_hub(self, address: Address) -> None:
        def done(sock: socket.socket | None) -> None:
            self._dials.remove(dial)
            if sock is None:
                return

            def heard(message: Message) -> None:
                self._unknown.known(connection)
                connection.close()
                message.pop("to", None)
                said = None
                with suppress(WireError):  # whoever has that address by now
                    said = parse(TO_AGENT, message)
                if isinstance(said, HubIs) and said.address is not None and hub_seeking.yields_to(said, self._own):
                    self._steps_down((said.address, said.port))

            transport = client_side(self._place.secret)
            connection = LoopConnection(self._loop, sock, heard, lambda why: None, transport)
            self._meets(connection, address[0])
            connection.say(as_message(WhereIsTheHub(run=self._place.run)))

        dial = Dial(self._loop, address, done)
        self._dials.append(dial)

    def _steps_down(self, to: Address) -> None:
        if self._serving is None or not self._serving.missing():
            return
        self._say(f"the run's hub is at {to[0]}:{to[1]}; this node goes there")
        self._serving.steps_down(to)
        self._serving = None
        self._seeking = [(None, to), *self._candidates()]
        self._begin_seeking()

    # others' agents

    @property
    def _own(self) -> Address:
        """Where others find this agent."""
        return self._place.address or "", self._port or 0

    def _watch_port(self, listener: socket.socket) -> None:
        self._deaf = False
        self._loop.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        """So many at most; the others come with the next turn."""
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
        try:
            transport = server_side(self._place.secret)
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
                self._unknown.known(connection)
                connection.say(as_message(Refusal(why=str(wrong))))
                connection.close()
                return
            if isinstance(hello, WhereIsTheHub):
                said.clear()  # it stays a stranger, whose time runs out, and may ask again until then
                connection.say(self._where())
                return
            self._unknown.known(connection)
            self._came(_Caller(hello, connection, known, said, time.monotonic()))

        def ended(_why: str | None) -> None:
            self._unknown.known(connection)
            if transport.refused:
                self._tell_refused(host, transport.refused)
            self._callers = [caller for caller in self._callers if caller.connection is not connection]
            if self._serving is not None:
                self._serving.ended(connection)

        connection = LoopConnection(self._loop, sock, heard, ended, transport)
        self._meets(connection, host)

    def _meets(self, connection: LoopConnection, host: str) -> None:
        """Somebody who has not said yet who it is."""
        if (crowded_out := self._unknown.came(connection, host, time.monotonic())) is not None:
            crowded_out.close()

    def _tell_refused(self, host: str, why: str) -> None:
        if host not in self._refused and len(self._refused) < _REFUSALS_SHOWN:
            self._refused.add(host)
            last = "; of other hosts nothing more is said" if len(self._refused) == _REFUSALS_SHOWN else ""
            self._say(
                f"a process on {host} is refused: {why}{last}\n"
                "  state  it is not let in, and the run goes on without it\n"
                f"  next   {SAME_FOR_ALL}"
            )

    def _came(self, caller: _Caller) -> None:
        hello, connection = caller.hello, caller.connection
        connection.takes_long_lines()
        if self._serving is not None:
            caller.heard.append(self._serving.takes(hello.node, hello, caller.said[0], connection))
            for message in caller.said[1:]:
                caller.heard[0](message)
        elif self._attending is not None and time.monotonic() - caller.since_s > hub_seeking.CALLER_S:
            connection.say(self._where((hello.address, hello.port)))
        else:
            self._callers.append(caller)  # until we are the hub, or know where it is

    def _answer_callers(self) -> None:
        callers, self._callers = self._callers, []
        for caller in callers:
            self._came(caller)

    def _where(self, asks: tuple[str | None, int | None] = (None, None)) -> Message:
        """asks: where the caller listens"""
        hub = self._attending
        if self._serving is not None:
            where = hub_seeking.hub_here(self._own, missing=bool(self._serving.missing()))
        elif hub is not None:
            silent_s = hub.lease.silent_s(time.monotonic())
            where = hub_seeking.hub_there(hub.address, welcome=hub.welcome, silent_s=silent_s, asks=asks)
        else:
            where = HubIs()
        return {"to": None, **as_message(where)}

    def _introduced(self, message: Message) -> Hello | WhereIsTheHub:
        """Raises WireError."""
        another = WireError("the agent here is of another run")
        try:
            hello = parse(TO_LISTENER, message)
        except WireError:
            raise another from None
        if not isinstance(hello, Hello | WhereIsTheHub) or not self._is_ours(hello.run):
            raise another
        if isinstance(hello, WhereIsTheHub):
            return hello
        if not hello.node or hello.node == self._place.node:
            raise WireError(f"a node that calls itself {hello.node!r} is here already")
        return hello

    def _is_ours(self, run: object) -> bool:
        return isinstance(run, str) and hmac.compare_digest(_bytes(run), _bytes(self._place.run))


def _bytes(text: str) -> bytes:
    """Of any text that JSON may carry, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")

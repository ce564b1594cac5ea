"""How the nodes of a run meet: by torchrun's c10d rendezvous at first, and at the hub from then on.

    first nodes   meet in a round of the rendezvous, at a host that is named (rendezvous/store.py) or, where all they
                  have is the run's URL, at one that is written there (rendezvous/written_meeting.py); whoever of them
                  publishes first that it has the hub, has it, and names all who have met
    later nodes   find that in the rendezvous' store (rendezvous/store.py), or at the run's URL
                  (hub/written_lookup.py), and connect straight to the hub: no new round, no restart

Promises  a node waits for the others no longer than --rdzv-conf join_timeout, and its error says who came.
          A published hub that does not answer may be moving: the node waits a while for the next one, and then for a
          round, too. One that has another secret, or is of another elastic-exact, it does not wait for: nobody else
          would be found there.
          A node that is lost while nodes meet holds nobody up. Once there is a hub, each of them knows the others, and
          where it is lost before the first view, the next of them has it, as later in the run.
          Signals are heard: torch's store may hold up whoever asks it for as long as its host is away.
Leaves    who may join, and everything after hello, to the hub.

Of torch 2.13: `create_handler` is public.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from elastic.errors import ElasticError
from elastic.launch.hub.announcement import HubAnnouncement, replace_hub
from elastic.launch.hub.written_lookup import HubLookup, LookupByUrl
from elastic.launch.net import addresses
from elastic.launch.rendezvous.caller_names import name_callers_quickly
from elastic.launch.rendezvous.round import NoMaster, Refusals, Round, called, participants
from elastic.launch.rendezvous.round import in_words as named
from elastic.launch.rendezvous.state import SignedBackend, StateRefused
from elastic.launch.rendezvous.store import (
    DEFAULT_PORT,
    FoundStore,
    RendezvousEndpoints,
    StoreSearch,
    StoreSilent,
    is_here,
    leave_word,
    probe,
    rendezvous_endpoints,
)
from elastic.launch.rendezvous.store_host import StoreHost
from elastic.launch.rendezvous.written_meeting import MOVING_S, SILENT_S, MeetingSearch
from elastic.membership.written_hub import Nodes, hub_in, nodes_in, written_hub
from elastic.version import __version__
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.secret import SAME_FOR_ALL
from elastic_checkpoint.net.transport import prepare

JOIN_S, LAST_CALL_S = 600, 1  # torchrun's last call is 30 s: here a node that comes later costs nobody anything
_POLL_S = 0.1
_SAID_AFTER_S = 1.0  # of a hub's silence: a second look at it has failed
_STORE_S = 12  # see elastic/membership/worker/rendezvous.py


class NodesMissing(ElasticError, TimeoutError):
    """Too few nodes met by the deadline, or this one was not let in.

    Or the place where they meet cannot be reached, or has another secret, or the run is of another elastic-exact.
    """


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a node knows when it has met the others.

    listener   other agents connect here: the hub is here, or may come to be
    connected  to the hub, elsewhere; None: it is here, or lost
    address    this node's, as the others see it
    met        of those who met before there was a hub, name and address, in the order in which they have it; none: this
               node came later
    announcement  of the hub, should it be here
    find_hub   asks those places once more where the hub is, which may take seconds: a connection to it, or None
    kept       what must live as long as this process: absence would end our membership
    """

    listener: socket.socket
    connected: socket.socket | None
    address: str
    nonce: str
    met: Nodes = ()
    announcement: HubAnnouncement | None = None
    find_hub: Callable[[], socket.socket | None] | None = None
    kept: tuple[Any, ...] = field(default=(), repr=False)


def meet(
    endpoint: str,
    run_id: str,
    *,
    node: str,
    nodes_min: int,
    nodes_max: int,
    conf: Mapping[str, Any],
    stores: StoreHost,
    local_addr: str | None = None,
    ports: range | None = None,
    secret: str | None = None,
    say: Callable[[str], None],
) -> Meeting:
    """Meet the run's other nodes.

    node    this one's name
    stores  of the rendezvous that are here, or come to be
    secret  of the run, see elastic_checkpoint/net/secret.py

    Raises NodesMissing, ConfigError; CheckpointError for a secret that cannot be used here.
    """
    endpoints = rendezvous_endpoints(endpoint)
    towards = (
        parse_rendezvous_endpoint(endpoints.hosts[0], DEFAULT_PORT)[0] if endpoints.hosts and endpoints.hosts[0] else ""
    )
    chosen = addresses.choose(towards, local_addr)
    conf = {"last_call_timeout": LAST_CALL_S, **conf}
    conf.setdefault("join_timeout", conf.get("timeout", JOIN_S))
    listener = addresses.listen(chosen.address, ports)
    prepare(secret)
    meets = _Meets(endpoints, run_id, node, chosen, listener, ports, nodes_min, nodes_max, conf, stores, secret, say)
    words = addresses.in_words(chosen, local_addr)
    try:
        return _heedful(lambda: meets.meet(words))
    except ElasticError:
        meets.settle()
        raise
    finally:
        meets.end()


class _Meets:
    """One node's way to the others, until its deadline. Its methods raise NodesMissing."""

    def __init__(
        self,
        endpoints: RendezvousEndpoints,
        run_id: str,
        node: str,
        chosen: addresses.Chosen,
        listener: socket.socket,
        ports: range | None,
        nodes_min: int,
        nodes_max: int,
        conf: Mapping[str, Any],
        stores: StoreHost,
        secret: str | None,
        say: Callable[[str], None],
    ) -> None:
        self._stores = stores
        self._endpoints = endpoints
        self._run_id = run_id
        self._node = node
        self._met: dict[str, Nodes] = {}  # with whom, by the nonce of the hub of those who have
        self._ending = threading.Event()
        self._address = chosen.address
        self._listener = listener
        self._nodes_min, self._nodes_max = nodes_min, nodes_max
        self._conf = conf
        self._secret = secret
        self._say = say
        self._own = self._address, listener.getsockname()[1]
        self._hubs = HubLookup(secret, self._own)
        self._within_s = join_s(conf)
        self._deadline_s = time.monotonic() + self._within_s
        self._key = f"elastic/{run_id}/hub"
        self._by_url = LookupByUrl(endpoints.url, secret, self._own) if endpoints.url is not None else None
        self._ports = ports
        self._by_storage: MeetingSearch | None = None
        self._silent: tuple[dict[str, Any], float] | None = None  # which hub, and since when
        self._silence_is_said = False

    def meet(self, in_words: str) -> Meeting:
        """Look for the hub and the other nodes until they have met; `in_words` says this node's address to people."""
        meeting = self.by_url_first()
        while meeting is None:
            found = self.find_store()
            meeting = self.at(found, in_words) if isinstance(found, FoundStore) else found
        return meeting

    def _pause(self) -> None:
        """Wait a moment; raise _Ending once nobody wants to meet any more."""
        if self._ending.wait(_POLL_S):
            raise _Ending

    # by the run's URL

    def by_url(self) -> Meeting | None:
        """Return the meeting with the hub that the run's URL has led to, if it has by now."""
        if self._by_url is None:
            return None
        if self._by_url.failure is not None:
            why = (
                f"the run's storage cannot be read, to see where its hub is: {self._by_url.failure}\n"
                "  state  this node has not joined, and nothing was started here\n"
                "  next   look at the URL in --rdzv-endpoint and at its credentials on this node"
            )
            raise NodesMissing(why) from self._by_url.failure
        if self._by_url.hubs.other_version is not None:
            raise self._of_another_version(*self._by_url.hubs.other_version)
        if self._by_url.found is None:
            return None
        connected, nonce = self._by_url.found
        return self._leave_word(self._joins(connected, nonce))

    def by_url_first(self) -> Meeting | None:
        """Return the meeting with the hub that the URL leads to, after one look: then nobody needs a rendezvous."""
        if self._by_url is not None:
            self._by_url.looked.wait(max(0.0, self._deadline_s - time.monotonic()))
        return self.by_url()

    def settle(self) -> None:
        if self._by_storage is not None:
            self._by_storage.settle()

    def end(self) -> None:
        """Say nothing more to the other nodes, as nobody wants to meet any more."""
        self._ending.set()
        if self._by_url is not None:
            self._by_url.end()
        if self._by_storage is not None:
            self._by_storage.end()

    # by a store

    def find_store(self) -> FoundStore | Meeting:
        """Return the store of a rendezvous, or the meeting that the URL has led to meanwhile."""
        search = self._search()
        try:
            while (found := search.take()) is None:
                if search.error is not None:
                    raise search.error
                if (meeting := self.by_url()) is not None:
                    return meeting
                if time.monotonic() > self._deadline_s:
                    raise self._no_store(search.failures)
                self._say_silent()
                self._pause()
            return found
        finally:
            if search is not self._by_storage:
                search.end()

    def _say_silent(self) -> None:
        """Say once that the hub that is written at the URL is silent, and how long it is waited for."""
        if self._by_storage is None or self._by_url is None or self._silence_is_said:
            return
        silent_s = self._by_url.silent_s()
        if silent_s is not None and silent_s > _SAID_AFTER_S:
            self._silence_is_said = True
            self._say(
                "no hub of the run answers where its URL says: it may be moving, or all machines were lost; this node "
                f"waits {MOVING_S:.0f} s for it before it meets others anew"
            )

    def _search(self) -> StoreSearch | MeetingSearch:
        """Begin to look for a store: at the named hosts, or at the place that is written at the run's URL."""
        if self._by_url is None or self._endpoints.hosts:
            return StoreSearch(self._endpoints.hosts, self._params, self._stores)
        if self._by_storage is not None:
            self._by_storage.leave()
        self._by_storage = MeetingSearch(
            self._by_url.url, self._address, self._ports, self._params, self._stores, self._by_url.silent_s
        )
        return self._by_storage

    def at(self, found: FoundStore, in_words: str) -> Meeting | None:
        """Return the meeting at this store; None: the store is lost, or the others meet elsewhere by now."""
        backend = SignedBackend(found.backend, self._run_id, self._secret)
        try:
            meeting = self._at(found, backend, in_words)
        except DistError as lost:
            may_be_back = self._has_other_endpoints or isinstance(lost, StoreSilent) or _is_open(found.endpoint)
            if not may_be_back or time.monotonic() > self._deadline_s:
                raise self._store_is_gone(found.endpoint or "localhost", lost) from lost
            meeting = None
        if meeting is None:
            backend.close()
        return meeting

    def _at(self, found: FoundStore, backend: SignedBackend, in_words: str) -> Meeting | None:
        """Return the meeting at this store; None: others meet elsewhere. Raises DistError where the store is lost."""
        name_callers_quickly()
        handler = create_handler(NoMaster(), backend, found.params)
        looking = found.looking
        where = found.endpoint or "localhost"
        refusals = Refusals(looking, f"elastic/{self._run_id}/refused", self._say)
        round_ = Round(handler.next_rendezvous)
        kept = (handler, found.store, looking, round_)
        while True:
            written = _written(looking, self._key)
            if round_.begun:
                refusals.tell()
            published = hub_in(written)
            if published is not None:
                self._note_met(published)
            if (connected := self._hubs.connect(published)) is not None and published is not None:
                _met()
                joined = self._joins(connected, published["nonce"], kept)
                return self._leave_word(joined, looking)
            if published is not None and published["nonce"] in self._met and self._hubs.nobody_there:
                _met()
                self._say(
                    "the node with the run's hub was lost before this one came to it\n"
                    "  state  nothing was started here\n  next   nothing; the next of those who have met has the hub"
                )
                return self._leave_word(self._joins(None, published["nonce"], kept), looking)
            if self._hubs.other_version is not None:
                raise self._of_another_version(*self._hubs.other_version)
            if (meeting := self.by_url()) is not None:
                _met()
                if self._by_storage is not None:
                    self._by_storage.say_over(looking)
                return replace(meeting, kept=(*meeting.kept, *kept))
            if self._by_storage is not None and round_.info is None and self._by_storage.is_over(looking):
                return None
            error = round_.error  # once: its thread may fail between two looks, and each would say something else
            if self._is_refused or isinstance(error, StateRefused):
                refusals.leave(self._address)
                raise self._refused(f"whoever is at {where}: {error}" if error is not None else "")
            if isinstance(error, RendezvousConnectionError):
                raise DistError(str(error)) from error
            moves = self._may_move(published)
            if not round_.begun:
                self._say_silent()
            if not round_.begun and not moves and (self._by_storage is None or self._by_storage.may_begin()):
                nodes = f"{self._nodes_min} to {self._nodes_max} nodes of run {self._run_id!r}"
                self._say(f"waiting at {where} for {nodes}, as {in_words}")
                round_.begin()
            nonce = secrets.token_hex(16)
            if round_.info is not None and not moves and self._publishes(looking, written, nonce, backend):
                _met()
                return self._leave_word(self._joins(None, nonce, kept), looking)
            if error is not None or time.monotonic() > self._deadline_s:
                raise self._did_not_meet(where, backend, error) from error
            self._pause()

    def _publishes(self, store: Any, written: bytes, nonce: str, backend: Any) -> bool:
        """Publish that this node has the hub; return False if another one was faster, or the store is lost."""
        others = [one for one in participants(backend) or () if one[0] != self._node]
        self._met[nonce] = ((self._node, self._own), *others)
        with contextlib.suppress(DistError):
            return replace_hub(store, self._key, written, self._where(nonce))
        return False  # the next look at the lost store says so

    def _note_met(self, hub: dict[str, Any]) -> None:
        """Keep the nodes that a published hub names as those who have met, if this node is one of them."""
        nodes = nodes_in(hub)
        if self._node in dict(nodes):
            self._met.setdefault(hub["nonce"], nodes)

    def _may_move(self, hub: dict[str, Any] | None) -> bool:
        """Return whether the hub that is published, if any is, and does not answer may be moving to another node."""
        if hub is None or self._silent is None or self._silent[0] != hub:
            self._silent = None if hub is None else (hub, time.monotonic())
            if hub is not None and not self._hubs.refuses:
                self._say(
                    f"no hub of the run is found by way of {hub['host']}:{hub['port']}, where it was: it may be "
                    f"moving, and this node waits {MOVING_S:.0f} s for it before it meets others anew"
                )
        return self._silent is not None and time.monotonic() - self._silent[1] < MOVING_S

    def _joins(self, connected: socket.socket | None, nonce: str, kept: tuple[Any, ...] = ()) -> Meeting:
        """Return the meeting of a node that joins; connected: to the hub, None: it is here, or lost."""
        return Meeting(
            listener=self._listener,
            connected=connected,
            address=self._address,
            nonce=nonce,
            met=self._met.get(nonce, ()),
            kept=kept,
        )

    def _leave_word(self, meeting: Meeting, store: Any | None = None) -> Meeting:
        """Leave this agent's address at those places of meeting that are here: it knows the way to the hub.

        store  for a thread of its own from now on
        """
        leave_word(self._endpoints.hosts, self._stores, self._key, written_hub(*self._own, meeting.nonce))
        return replace(
            meeting,
            find_hub=self._finder(meeting.nonce, store),
            announcement=HubAnnouncement(
                self._endpoints.hosts,
                self._key,
                self._where(meeting.nonce),
                self._endpoints.url,
                at_url=self._by_storage is not None and self._by_url is not None and not self._by_url.hubs.refused,
            ),
        )

    def _finder(self, nonce: str, store: Any | None) -> Callable[[], socket.socket | None]:
        """Return what finds the hub for a node that has met the others and loses it before it knows any of them."""
        hubs, url = HubLookup(self._secret, self._own), self._endpoints.url

        def find() -> socket.socket | None:
            for written in (_published_in(store, self._key), _written_at(url)):
                if written is not None and written["nonce"] == nonce and (found := hubs.connect(written)) is not None:
                    return found
            return None

        return find

    def _where(self, nonce: str) -> dict[str, Any]:
        """Return the hub's address, were it here, and who has met: whoever is found by it knows them."""
        return written_hub(*self._own, nonce, self._met.get(nonce, ()))

    def _params(self, endpoint: str) -> RendezvousParameters:
        conf = {"read_timeout": min(_STORE_S, int(self._within_s)), **self._conf}
        return RendezvousParameters(
            "c10d",
            endpoint,
            self._run_id,
            self._nodes_min,
            self._nodes_max,
            called(self._node, self._own),
            **conf,
        )

    @property
    def _has_other_endpoints(self) -> bool:
        return len(self._endpoints.hosts) > 1 or self._endpoints.url is not None

    @property
    def _is_refused(self) -> bool:
        """Return whether the run's nodes have had another secret than this one for a while."""
        # Where the URL is all that is known, the hub that is written there may have been lost with the whole run, and
        # its address be another job's by now: that is no refusal.
        by_url = self._by_url is not None and bool(self._endpoints.hosts) and self._by_url.hubs.refused
        return self._hubs.refused or by_url

    # why not

    def _unreachable(self, title: str) -> str:
        """Return in lines why no hub was joined."""
        return self._hubs.unreachable(title) + (self._by_url.hubs.unreachable(title) if self._by_url else "")

    def _no_store(self, failures: Mapping[str, object]) -> NodesMissing:
        """Return the error for a deadline without a store, with what was tried."""
        tried = "; ".join(f"{endpoint or 'localhost'}: {why}" for endpoint, why in failures.items())
        where = ", ".join(self._endpoints.hosts) or f"the places that are written at {self._endpoints.url}"
        if here := ", ".join(host or "localhost" for host in self._endpoints.hosts if is_here(host)):
            hosts = f"this machine is to host the store: end what listens at {here} here, or name another port"
        elif self._endpoints.hosts:
            hosts = "start `elastic run` on that host, too; it hosts the store"
        else:
            hosts = (
                "wait longer, with --rdzv-conf join_timeout=SECONDS: a hub that is written there, and does not answer,"
                f" is waited for {MOVING_S:.0f} s, and a store {SILENT_S:.0f} s"
            )
        return NodesMissing(
            f"no rendezvous store answers at {where} within {self._within_s:.0f} s"
            f" ({tried or 'no answer yet'})\n" + self._unreachable("hub    ") + "  state  nothing was started here\n"
            f"  next   {hosts}"
        )

    def _store_is_gone(self, where: str, lost: DistError) -> NodesMissing:
        return NodesMissing(
            f"the rendezvous store at {where} has gone: {lost}\n"
            + self._unreachable("hub    ")
            + "  state  nothing was started here\n"
            "  next   see what became of the node that hosts it; start this one again when it is there"
        )

    def _refused(self, who: str) -> NodesMissing:
        return NodesMissing(
            f"the nodes of run {self._run_id!r} let this one not in, or are none of its run"
            + (f": {who}\n" if who else "\n")
            + self._unreachable("hub    ")
            + "  state  nothing was started here, and the run goes on without this node\n"
            f"  next   {SAME_FOR_ALL}"
        )

    def _of_another_version(self, where: str, theirs: str | None) -> NodesMissing:
        there = f"elastic-exact {theirs}" if theirs is not None else "a version before those that say which they are"
        return NodesMissing(
            f"this node has elastic-exact {__version__}, and run {self._run_id!r} is of {there}, as its node at "
            f"{where} says\n"
            "  state  nothing was started here, and the run goes on without this node\n"
            "  next   install here what the run has; or end it on all nodes, and start all of them with one version: "
            "they go on from what is saved"
        )

    def _did_not_meet(self, where: str, backend: Any, error: Exception | None) -> NodesMissing:
        """Return the error for a round that was not completed, with who came."""
        return NodesMissing(
            f"the nodes of run {self._run_id!r} did not meet within {self._within_s:.0f} s at {where}\n"
            f"  found     {named(participants(backend))}, and at least {self._nodes_min} are needed\n"
            + self._unreachable("hub       ")
            + f"  state     nothing was started here ({error or 'no round was completed'})\n"
            "  next      start the missing nodes with the same --rdzv-id and --rdzv-endpoint, or allow fewer with "
            "--nnodes=MIN:MAX, or wait longer with --rdzv-conf join_timeout=SECONDS"
        )


def _is_open(endpoint: str) -> bool:
    """Return whether a machine takes connections, though its store was lost: then another store is being opened."""
    with contextlib.suppress(OSError):
        probe(endpoint)
        return True
    return False


class _Ending(Exception):
    """This node is not to meet anybody any more."""


def _heedful(call: Callable[[], Meeting]) -> Meeting:
    """Return what `call` gives, from a thread of its own, so that this one, to which signals come, heeds them."""
    made: list[Meeting] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            made.append(call())
        except _Ending:
            pass
        except Exception as failure:
            failed.append(failure)

    thread = threading.Thread(target=run, name="elastic-meet", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
    if failed:
        raise failed[0]
    return made[0]


def join_s(conf: Mapping[str, Any]) -> float:
    """Return how long a node waits for others, and for a place among them, in seconds."""
    return float(conf.get("join_timeout", conf.get("timeout", JOIN_S)))


def _met() -> None:
    """Keep torch's rendezvous quiet: from here on it may be lost with its host, and its heartbeats fail."""
    logging.getLogger("torch.distributed.elastic.rendezvous").setLevel(logging.ERROR)


def _published_in(store: Any | None, key: str) -> dict[str, Any] | None:
    """Return the hub that a store names; None: none, or the store is gone."""
    with contextlib.suppress(DistError):
        return hub_in(_written(store, key)) if store is not None else None
    return None


def _written_at(url: str | None) -> dict[str, Any] | None:
    """Return the hub that is written at the run's URL; None: none, or it cannot be read."""
    if url is None:
        return None
    from elastic.membership import hub_file

    with contextlib.suppress(CheckpointError):
        return hub_file.read(url)
    return None


def _written(store: Any, key: str) -> bytes:
    return bytes(store.get(key)) if store.check([key]) else b""
